"""Traced operations to typed device operations: names, shapes and strides in, kernels out."""

from .regions import lower_events
from .rules import lower
from .tensors import FREE, Lowered

__all__ = ["FREE", "Lowered", "lower", "lower_events"]
