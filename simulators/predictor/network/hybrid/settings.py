"""When a hybrid engine may skip: how accurate, how fast."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.network.hybrid.predictors import PREDICTORS
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)


@dataclass(frozen=True)
class HybridSettings:
    """What counts as steady."""

    sample_s: float = 20e-6
    """Rates and queues are sampled once in so long."""
    samples: int = 10
    """How many samples are judged."""
    rate_tolerance: float = 0.05
    """A flow is steady when what it delivered a sample varies by at most this share of its mean
    (and two packets): smaller is more accurate and slower."""
    queue_bytes: int = 100_000
    """A queue is steady when the means of both halves of its samples differ by at most so much."""
    used: float = 0.95
    """Every flow must run at its NIC's rate or cross a link that is full to this share: rates that
    recover slowly also look steady."""
    predictor: str = "frozen"
    """How deep queues are after a skip; ``transformer`` needs torch and the file of its
    ``weights``."""
    weights: str = ""
    """The file that the command which trains the transformer writes."""
    memory: bool = True
    """Flows that are announced together and have links to themselves are played once, and from
    memory whenever the same comes again."""

    def check(self) -> None:
        """Refuse settings that mean nothing.

        Raises:
            InputError: naming the field.
        """
        require_positive("hybrid.sample_s", self.sample_s)
        require_positive("hybrid.rate_tolerance", self.rate_tolerance)
        require_positive("hybrid.queue_bytes", self.queue_bytes)
        require_choice("hybrid.predictor", self.predictor, (*PREDICTORS, "transformer"))
        if (self.predictor == "transformer") != bool(self.weights):
            problem = "go with predictor=transformer"
            raise InputError("hybrid.weights", self.weights, problem, "a file, or nothing")
        if not isinstance(self.samples, int) or self.samples < 4 or self.samples % 2:
            raise InputError("hybrid.samples", self.samples, "has no halves", "4, 6, 8, ...")
        if not 0 < self.used <= 1:
            raise InputError("hybrid.used", self.used, "is no share", "0 < used <= 1")
