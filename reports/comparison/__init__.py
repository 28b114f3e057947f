"""Two recipes of one job: where each second goes, and which change brings what."""

from trainscout.reports.comparison.comparison import Comparison, Difference, Side, compare
from trainscout.reports.comparison.predictions import Predictions

__all__ = ["Comparison", "Difference", "Predictions", "Side", "compare"]
