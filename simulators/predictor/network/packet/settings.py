"""How packets are cut, queued and held back."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

CONGESTION = ("window", "dcqcn")


@dataclass(frozen=True)
class Dcqcn:
    """DCQCN's constants (Zhu et al., SIGCOMM 2015).

    ``g`` and the marking thresholds are those of the public HPCC simulator; the intervals and the
    steps of recovery are typical settings, fitted to nothing.

    A congestion notification is sent at most every ``cnp_interval_s``; ``g`` weighs the estimate
    of congestion, which decays every ``alpha_interval_s``; rates recover every
    ``increase_interval_s``: ``fast_recoveries`` times half way back, then each time towards a
    target raised by ``additive_bytes_per_s``, after as many again by ``hyper_bytes_per_s``. Queues
    are marked from ``mark_from_bytes`` on with a probability that reaches ``mark_at_most`` at
    ``mark_all_bytes``, for a 100 Gb/s link; thresholds grow with a link's rate. No flow is slowed
    below ``least_bytes_per_s``.
    """

    cnp_interval_s: float = 50e-6
    g: float = 1 / 256
    alpha_interval_s: float = 55e-6
    increase_interval_s: float = 300e-6
    fast_recoveries: int = 5
    additive_bytes_per_s: float = 5e6
    hyper_bytes_per_s: float = 50e6
    least_bytes_per_s: float = 12.5e6
    mark_from_bytes: float = 400e3
    mark_all_bytes: float = 1600e3
    mark_at_most: float = 0.2


@dataclass(frozen=True)
class PacketSettings:
    """What every flow and switch does.

    ``packet_bytes`` of payload travel with ``header_bytes``. A flow never has more than ``window``
    bandwidth-delay products unacknowledged (from 1 on); ``congestion`` is ``window`` alone, or
    ``dcqcn`` on top; ``seed``: of which packets are marked. A switch pauses a link when
    ``pause_bytes`` that came over it wait there, and lets it go on at ``resume_bytes`` (priority
    flow control; None: never, and then a queue that outgrows ``queue_bytes`` would drop packets,
    which is an error). Buffers and thresholds are a switch's to choose: these are assumptions.
    """

    packet_bytes: int = 4096
    header_bytes: int = 0
    window: float = 1.25
    congestion: str = "window"
    pause_bytes: int | None = 512 * 1024
    resume_bytes: int = 384 * 1024
    queue_bytes: int = 32 * 2**20
    dcqcn: Dcqcn = Dcqcn()
    seed: int = 0

    def check(self) -> None:
        """Refuse settings that mean nothing.

        Raises:
            InputError: naming the field.
        """
        require_choice("packet.congestion", self.congestion, CONGESTION)
        require_positive("packet.packet_bytes", self.packet_bytes)
        require_positive("packet.header_bytes", self.header_bytes, allow_zero=True)
        require_positive("packet.queue_bytes", self.queue_bytes)
        if self.window < 1:
            raise InputError("packet.window", self.window, "would leave links idle", ">= 1")
        if self.pause_bytes is not None:
            require_positive("packet.pause_bytes", self.pause_bytes)
            if not 0 < self.resume_bytes <= self.pause_bytes:
                allowed = f"1..{self.pause_bytes}"
                raise InputError("packet.resume_bytes", self.resume_bytes, "is no end", allowed)
        for name in ("cnp_interval_s", "alpha_interval_s", "increase_interval_s"):
            require_positive(f"packet.dcqcn.{name}", getattr(self.dcqcn, name))
