"""Collectives as transfers, and those on an engine."""

from trainscout.simulators.predictor.network.collectives.congestion import (
    Congested,
    CongestionModel,
    Pattern,
    congestion_model,
    group_transfers,
)
from trainscout.simulators.predictor.network.collectives.patterns import (
    by_node,
    exchange,
    pattern,
    send,
)
from trainscout.simulators.predictor.network.collectives.play import (
    EngineSettings,
    Played,
    make_engine,
    play,
)
from trainscout.simulators.predictor.network.collectives.transfers import Transfers, together

__all__ = [
    "Congested",
    "CongestionModel",
    "EngineSettings",
    "Pattern",
    "Played",
    "Transfers",
    "by_node",
    "congestion_model",
    "exchange",
    "group_transfers",
    "make_engine",
    "pattern",
    "play",
    "send",
    "together",
]
