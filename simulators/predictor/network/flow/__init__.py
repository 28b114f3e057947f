"""Flow level: rates instead of packets. Importing this loads numba."""

from .engine import FlowEngine, Progress
from .water_filling import max_min_rates

__all__ = ["FlowEngine", "Progress", "max_min_rates"]
