"""MLCommons Chakra execution traces: one file a rank, a graph of nodes with their dependencies."""
