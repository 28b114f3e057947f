"""Flow level: rates instead of packets. Importing this loads numba."""

from trainscout.simulators.predictor.network.flow.engine import FlowEngine, Progress
from trainscout.simulators.predictor.network.flow.water_filling import max_min_rates

__all__ = ["FlowEngine", "Progress", "max_min_rates"]
