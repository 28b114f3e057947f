"""GPU memory over a training step."""

from simulators.memory.footprint import footprint

__all__ = ["footprint"]
