"""How sure a prediction is, from how far predictions of measured runs like it were off."""

from .fastest import Claim, claim
from .features import LAUNCH_BOUND, Features, features_of
from .interval import LEVEL, error_bar, log_interval
from .ties import tie_share

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
