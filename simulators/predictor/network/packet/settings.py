"""How packets are cut, queued and held back."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

CONGESTION = ("window", "dcqcn", "timely", "swift", "hpcc")
ROUTING = ("flow", "spray", "adaptive")
RECOVERY = ("none", "go_back_n", "selective_repeat")
# As many as switches have queues for; weights that divide the unit of turns.
MOST_CLASSES, MOST_WEIGHT = 8, 16


@dataclass(frozen=True)
class Dcqcn:
    """DCQCN's constants (Zhu et al., SIGCOMM 2015).

    ``g`` and the marking thresholds are those of the public HPCC simulator; the intervals and the
    steps of recovery are typical settings, fitted to nothing.
    """

    cnp_interval_s: float = 50e-6
    """A congestion notification is sent at most once in so long."""
    g: float = 1 / 256
    """Weighs the estimate of congestion."""
    alpha_interval_s: float = 55e-6
    """The estimate of congestion decays once in so long."""
    increase_interval_s: float = 300e-6
    """Rates recover a step in so long."""
    fast_recoveries: int = 5
    """So many steps go half way back to the rate before."""
    additive_bytes_per_s: float = 5e6
    """After those, each step raises the rate to recover to by so much."""
    hyper_bytes_per_s: float = 50e6
    """After as many steps again, each raises it by so much."""
    least_bytes_per_s: float = 12.5e6
    """No flow is slowed below it."""
    mark_from_bytes: float = 400e3
    """Queues are marked from here on, for a 100 Gb/s link; thresholds grow with a link's rate."""
    mark_all_bytes: float = 1600e3
    """Where the probability of a mark reaches ``mark_at_most``."""
    mark_at_most: float = 0.2
    """The probability of a mark at ``mark_all_bytes``, before all are marked."""


@dataclass(frozen=True)
class Timely:
    """TIMELY's constants (Mittal et al., SIGCOMM 2015, sections 4 and 5)."""

    low_s: float = 50e-6
    """Below this delay the rate rises whatever its gradient."""
    high_s: float = 500e-6
    """Above this delay the rate falls whatever its gradient."""
    additive_bytes_per_s: float = 1.25e6
    """A step of the rate upwards (10 Mb/s)."""
    beta: float = 0.8
    """How much of the rate a gradient of one base delay takes."""
    ewma: float = 0.875
    """Weighs the newest difference of delays."""
    segment_bytes: int = 16384
    """The delay is looked at once in so many acknowledged bytes."""
    least_bytes_per_s: float = 12.5e6
    """No flow is slowed below it."""


@dataclass(frozen=True)
class Swift:
    """Swift's constants (Kumar et al., SIGCOMM 2020, section 3.1): a sender's window that goes by
    one target of delay, without scaling by hops or flows. Values are assumptions."""

    target_s: float = 50e-6
    """The round trip that senders aim at."""
    additive_packets: float = 1.0
    """The window grows by so many packets a round trip."""
    beta: float = 0.8
    """How much of the window a delay far above the target takes."""
    most_cut: float = 0.5
    """No cut takes more."""


@dataclass(frozen=True)
class Hpcc:
    """HPCC's constants (Li et al., SIGCOMM 2019, section 5.1)."""

    eta: float = 0.95
    """How much of a link its senders aim to use."""
    max_stage: int = 5
    """So many additive steps before the window is set by the link's use again."""
    additive_bytes: int = 80
    """A step of the window upwards."""


@dataclass(frozen=True)
class PacketSettings:
    """What every flow and switch does."""

    packet_bytes: int = 4096
    """Payload of a packet."""
    header_bytes: int = 0
    """What travels with it."""
    window: float = 1.25
    """A flow never has more than so many bandwidth-delay products unacknowledged (from 1 on)."""
    congestion: str = "window"
    """``window`` alone, or on top of it ``dcqcn``, ``timely`` (a rate that goes by the gradient of
    delays), ``swift`` (a window that goes by a target of delay) or ``hpcc`` (a window that goes by
    what switches stamp on packets)."""
    routing: str = "flow"
    """``flow`` (every packet of a flow takes its hashed path), ``spray`` (the sender sends its
    packets over all equal paths in turn) or ``adaptive`` (every switch sends each packet where
    least waits); with the latter two packets overtake each other, which receivers must allow."""
    paths: int = 64
    """At most so many equal paths are used for one flow by packets, or after a failure."""
    recovery: str = "none"
    """What is done about lost packets: ``none`` (a loss is an error), ``go_back_n`` or
    ``selective_repeat``."""
    timeout_s: float = 500e-6
    """A sender that hears nothing so long sends again what may be lost. An assumption: adapters
    are set to anything from there to seconds."""
    class_of: dict[str, int] = field(default_factory=dict)
    """The traffic class of a communicator (``{pp: 0, dp: 1}``), with queues and pauses of its own;
    those not named are of the last."""
    weights: tuple[int, ...] = ()
    """Of each class, in bytes sent while several wait; empty: lower classes always go first."""
    pause_bytes: int | None = 512 * 1024
    """A switch pauses a link when so much that came over it waits there (priority flow control;
    None: never, and then a queue that outgrows ``queue_bytes`` drops packets). An assumption, as
    buffers and thresholds are a switch's to choose."""
    resume_bytes: int = 384 * 1024
    """A paused link goes on when so much is left."""
    queue_bytes: int = 32 * 2**20
    """What a queue holds."""
    dcqcn: Dcqcn = field(default_factory=Dcqcn)
    """Congestion control on top of the window."""
    timely: Timely = field(default_factory=Timely)
    """Congestion control by the gradient of delays."""
    swift: Swift = field(default_factory=Swift)
    """Congestion control by a target of delay."""
    hpcc: Hpcc = field(default_factory=Hpcc)
    """Congestion control by stamps."""
    seed: int = 0
    """Of which packets are marked."""

    @property
    def classes(self) -> int:
        """How many traffic classes there are."""
        return max([0, len(self.weights) - 1, *self.class_of.values()]) + 1

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        require_choice("network.packet.congestion", self.congestion, CONGESTION)
        require_positive("network.packet.packet_bytes", self.packet_bytes)
        require_positive("network.packet.header_bytes", self.header_bytes, allow_zero=True)
        require_positive("network.packet.queue_bytes", self.queue_bytes)
        require_choice("network.packet.routing", self.routing, ROUTING)
        require_choice("network.packet.recovery", self.recovery, RECOVERY)
        require_positive("network.packet.paths", self.paths)
        require_positive("network.packet.timeout_s", self.timeout_s)
        self._check_classes()
        if self.routing != "flow" and self.congestion == "hpcc":
            problem = "compares stamps of one path"
            raise InputError(
                "network.packet.congestion", "hpcc", problem, "network.packet.routing=flow"
            )
        if self.window < 1:
            raise InputError(
                "network.packet.window", self.window, "would leave links idle", ">= 1"
            )
        if self.pause_bytes is not None:
            require_positive("network.packet.pause_bytes", self.pause_bytes)
            if not 0 < self.resume_bytes <= self.pause_bytes:
                allowed = f"1..{self.pause_bytes}"
                raise InputError(
                    "network.packet.resume_bytes", self.resume_bytes, "is no end", allowed
                )
        for name in ("cnp_interval_s", "alpha_interval_s", "increase_interval_s"):
            require_positive(f"network.packet.dcqcn.{name}", getattr(self.dcqcn, name))
        for part in ("timely", "swift", "hpcc"):
            constants = getattr(self, part)
            for each in fields(constants):
                require_positive(
                    f"network.packet.{part}.{each.name}", getattr(constants, each.name)
                )
        if self.timely.low_s > self.timely.high_s:
            allowed = f"at most high_s={self.timely.high_s:g}"
            raise InputError(
                "network.packet.timely.low_s", self.timely.low_s, "is above high_s", allowed
            )
        if self.swift.most_cut >= 1:
            raise InputError(
                "network.packet.swift.most_cut", self.swift.most_cut, "stops a flow", "< 1"
            )
        if self.hpcc.eta > 1:
            raise InputError(
                "network.packet.hpcc.eta", self.hpcc.eta, "is more than a link", "0..1"
            )

    def _check_classes(self) -> None:
        for name, number in self.class_of.items():
            if not 0 <= number < MOST_CLASSES:
                allowed = f"0..{MOST_CLASSES - 1}"
                raise InputError(f"network.packet.class_of.{name}", number, "is no class", allowed)
        if not all(1 <= weight <= MOST_WEIGHT for weight in self.weights):
            allowed = f"whole numbers 1..{MOST_WEIGHT}"
            raise InputError(
                "network.packet.weights", list(self.weights), "are no weights", allowed
            )
        if self.weights and len(self.weights) != self.classes:
            problem = f"are not those of {self.classes} classes"
            raise InputError("network.packet.weights", list(self.weights), problem, "one a class")
        if len(self.weights) > MOST_CLASSES:
            problem, allowed = "are too many", f"at most {MOST_CLASSES}"
            raise InputError("network.packet.weights", list(self.weights), problem, allowed)
