"""Traced operations to typed device operations: names, shapes and strides in, kernels out."""

from simulators.traces.lowering.lowered import FREE, Lowered
from simulators.traces.lowering.regions import lower_events
from simulators.traces.lowering.rules import lower

__all__ = ["FREE", "Lowered", "lower", "lower_events"]
