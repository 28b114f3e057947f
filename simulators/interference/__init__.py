"""How much computation and communication slow each other while they run together."""

from simulators.interference.features import KERNEL_CLASSES
from simulators.interference.predict import overlap_slowdowns

__all__ = ["KERNEL_CLASSES", "overlap_slowdowns"]
