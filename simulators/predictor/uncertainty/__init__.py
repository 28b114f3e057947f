"""How sure a prediction is, from how far predictions of measured runs like it were off."""

from trainscout.simulators.predictor.uncertainty.fastest import Claim, claim
from trainscout.simulators.predictor.uncertainty.features import (
    LAUNCH_BOUND,
    Features,
    features_of,
)
from trainscout.simulators.predictor.uncertainty.interval import LEVEL, error_bar, log_interval
from trainscout.simulators.predictor.uncertainty.ties import tie_share

__all__ = [
    "LAUNCH_BOUND",
    "LEVEL",
    "Claim",
    "Features",
    "claim",
    "error_bar",
    "features_of",
    "log_interval",
    "tie_share",
]
