"""GPU memory over a training step."""

from trainscout.simulators.predictor.memory.footprint import footprint

__all__ = ["footprint"]
