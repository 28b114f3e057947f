"""How much computation and communication slow each other while they run together."""

from trainscout.simulators.predictor.interference.features import KERNEL_CLASSES
from trainscout.simulators.predictor.interference.predict import overlap_slowdowns

__all__ = ["KERNEL_CLASSES", "overlap_slowdowns"]
