"""Collectives as transfers, and those on an engine."""

from .congestion import Congested, CongestionModel, Pattern, congestion_model, group_transfers
from .patterns import by_node, exchange, pattern, send
from .play import EngineSettings, Played, make_engine, play
from .transfers import Transfers, together

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
