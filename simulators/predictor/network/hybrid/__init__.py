"""Packets where rates change, fluid where they do not."""

from .engine import HybridEngine
from .settings import HybridSettings

__all__ = ["HybridEngine", "HybridSettings"]
