"""When a hybrid engine may skip: how accurate, how fast."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError, require_positive


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
    swing_tolerance: float = 0.2
    """Where pauses make rates swing (without ``dcqcn``), the means of both halves of the samples
    may differ by this share, and what was seen stands for four times as long (0: such flows are
    played whole)."""
    train_share: float = 1.0
    """Where flows come and go under pauses (without ``dcqcn``), they send trains of packets as
    one, 64 a flow and 8 a window or more, of at most this share of what lies between pausing and
    resuming (0: packets)."""
    queue_bytes: int = 100_000
    """A queue is steady when the means of both halves of its samples differ by at most so much."""
    used: float = 0.95
    """Every flow must run at its NIC's rate or cross a link that is full to this share: rates that
    recover slowly also look steady."""
    memory: bool = True
    """Flows that are announced together and have links to themselves are played once, and from
    memory whenever the same comes again."""

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        require_positive("network.hybrid.sample_s", self.sample_s)
        require_positive("network.hybrid.rate_tolerance", self.rate_tolerance)
        require_positive("network.hybrid.swing_tolerance", self.swing_tolerance, allow_zero=True)
        if not 0 <= self.train_share <= 1:
            problem, allowed = "is no share", "0 <= train_share <= 1"
            raise InputError("network.hybrid.train_share", self.train_share, problem, allowed)
        require_positive("network.hybrid.queue_bytes", self.queue_bytes)
        if not isinstance(self.samples, int) or self.samples < 4 or self.samples % 2:
            raise InputError(
                "network.hybrid.samples", self.samples, "has no halves", "4, 6, 8, ..."
            )
        if not 0 < self.used <= 1:
            raise InputError("network.hybrid.used", self.used, "is no share", "0 < used <= 1")
