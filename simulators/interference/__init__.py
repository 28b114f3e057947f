"""How much computation and communication slow each other while they run together."""

from simulators.interference.overlap import overlap_slowdowns

__all__ = ["overlap_slowdowns"]
