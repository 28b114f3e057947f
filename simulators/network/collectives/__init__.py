"""Collectives as transfers, and those on an engine."""

from simulators.network.collectives.patterns import by_node, exchange, pattern, send
from simulators.network.collectives.play import EngineSettings, Played, play
from simulators.network.collectives.transfers import Transfers, together

__all__ = [
    "EngineSettings",
    "Played",
    "Transfers",
    "by_node",
    "exchange",
    "pattern",
    "play",
    "send",
    "together",
]
