"""Traced operations to typed device operations: names, shapes and strides in, kernels out."""

from trainscout.simulators.virtual_cluster.traces.lowering.regions import lower_events
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import FREE, Lowered

__all__ = ["FREE", "Lowered", "lower", "lower_events"]
