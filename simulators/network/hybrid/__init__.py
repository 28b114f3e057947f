"""Packets where rates change, fluid where they do not."""

from simulators.network.hybrid.engine import HybridEngine
from simulators.network.hybrid.settings import HybridSettings

__all__ = ["HybridEngine", "HybridSettings"]
