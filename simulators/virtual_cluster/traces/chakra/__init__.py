"""MLCommons Chakra execution traces: one file a rank, a graph of nodes with their dependencies."""

from .read import read_chakra
from .write import write_chakra

__all__ = ["read_chakra", "write_chakra"]
