"""MLCommons Chakra execution traces: one file a rank, a graph of nodes with their dependencies."""

from trainscout.simulators.virtual_cluster.traces.chakra.read import read_chakra
from trainscout.simulators.virtual_cluster.traces.chakra.write import write_chakra

__all__ = ["read_chakra", "write_chakra"]
