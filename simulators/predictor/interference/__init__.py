"""How much computation and communication slow each other while they run together."""

from trainscout.simulators.predictor.interference.overlap import (
    KERNEL_CLASSES,
    overlap_slowdowns,
    paired_slowdowns,
)

__all__ = ["KERNEL_CLASSES", "overlap_slowdowns", "paired_slowdowns"]
