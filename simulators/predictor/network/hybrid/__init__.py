"""Packets where rates change, fluid where they do not."""

from trainscout.simulators.predictor.network.hybrid.engine import HybridEngine
from trainscout.simulators.predictor.network.hybrid.settings import HybridSettings

__all__ = ["HybridEngine", "HybridSettings"]
