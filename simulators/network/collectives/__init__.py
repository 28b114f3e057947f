"""Collectives as transfers, and those on an engine."""

from simulators.network.collectives.congestion import (
    Congested,
    CongestionModel,
    Pattern,
    congestion_model,
)
from simulators.network.collectives.patterns import by_node, exchange, pattern, send
from simulators.network.collectives.play import EngineSettings, Played, make_engine, play
from simulators.network.collectives.transfers import Transfers, together

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
    "make_engine",
    "pattern",
    "play",
    "send",
    "together",
]
