"""How much computation and communication slow each other while they run together."""

from .overlap import KERNEL_CLASSES, overlap_slowdowns, paired_slowdowns

__all__ = ["KERNEL_CLASSES", "overlap_slowdowns", "paired_slowdowns"]
