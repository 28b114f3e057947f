"""Flow level: rates instead of packets. Importing this loads numba."""

from simulators.network.flow.engine import FlowEngine, Progress
from simulators.network.flow.water_filling import max_min_rates

__all__ = ["FlowEngine", "Progress", "max_min_rates"]
