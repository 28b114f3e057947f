"""GPU memory over a training step."""

from .footprint import footprint

__all__ = ["footprint"]
