"""How sure a prediction is, from how far predictions of measured runs like it were off."""

from .features import LAUNCH_BOUND, Features, features_of
from .interval import LEVEL, error_bar, log_interval

__all__ = ["LAUNCH_BOUND", "LEVEL", "Features", "error_bar", "features_of", "log_interval"]
