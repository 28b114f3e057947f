"""Whether a need that is predicted fits: a probability, and the band it lies in.

Predictions of memory err too. How far measured needs were from predicted ones, as a logarithm, is
taken to be Student's t with two degrees of freedom, moved by a bias and stretched by a scale for
each software (``spread.yaml``, made by ``trainscout memory``): most needs are predicted closely, a
few are twice what was predicted, and software whose memory was read and measured is known better.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.framework import Framework

FITS, TIGHT, NO = "fits", "tight", "no"
BANDS = (FITS, TIGHT, NO)
SPREAD = Path(__file__).parent / "spread.yaml"
# A recipe fits where four in five such runs would, and does not where not one in fifty would.
LEAST_FITS, MOST_NO = 0.8, 0.02
# The quantile of the distribution that belongs to the latter.
_QUANTILE_NO = 4.8487


@dataclass(frozen=True)
class Spread:
    """Middle and scale of the logarithm of measured over predicted bytes."""

    bias: float
    scale: float

    def probability(self, used_bytes: float, capacity_bytes: float) -> float:
        """That a need predicted as ``used_bytes`` stays within the capacity."""
        if used_bytes <= 0:
            return 1.0
        distance = (math.log(capacity_bytes / used_bytes) - self.bias) / self.scale
        return float(below_share(distance))

    def may_fit_bytes(self, capacity_bytes: int) -> int:
        """The largest predicted need that is not in the band ``no``: what exceeds it is beyond
        doubt."""
        return int(capacity_bytes * math.exp(_QUANTILE_NO * self.scale - self.bias))


def below_share(distance: Any) -> Any:
    """What of Student's t with two degrees of freedom is below ``distance``, a number or an
    array."""
    return 0.5 + 0.5 * distance / (2 + distance**2) ** 0.5


def spread_of(framework: Framework) -> Spread:
    """How far off predictions of this software's memory are, or of what it supersedes; of unknown
    software, of any."""
    known = _spreads()
    names = (framework.name, *framework.supersedes)
    return next((known[name] for name in names if name in known), known["any"])


def band_of(probability: float) -> str:
    """``fits``, ``tight`` or ``no``."""
    if probability >= LEAST_FITS:
        return FITS
    return TIGHT if probability >= MOST_NO else NO


@functools.lru_cache(maxsize=1)
def _spreads() -> dict[str, Spread]:
    content: dict[str, Any] = read_yaml(SPREAD)
    return {
        name: Spread(float(each["bias"]), float(each["scale"]))
        for name, each in content["software"].items()
    }
