"""Which network predictions go by: a value that worker processes are handed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.simulators.predictor.question.errors import (
    InputError,
    nearest_name,
    require_choice,
    require_positive,
)

from .hybrid.settings import HybridSettings
from .neighbours import Neighbour
from .packet.settings import PacketSettings
from .topology.fabric import Failure, SwitchFabric

WHITEBOX = "whitebox"
ENGINES = ("flow", "packet", "hybrid")
NETWORKS = (WHITEBOX, *ENGINES)
# As many as NCCL opens.
MOST_QUEUE_PAIRS = 128
# Each on and off in every combination.
MOST_NEIGHBOURS = 4
# What sends more than a few numbers; shares and copies of dp count as dp.
COMMUNICATORS = ("dp", "expert_dp", "ep", "etp_ep", "cp", "pp", "tp", "etp")


@dataclass(frozen=True)
class NetworkChoice:
    """What slows communication down beyond its own price."""

    engine: str = WHITEBOX
    """``whitebox`` (nothing slows communication down) or the engine that plays the communication
    of ``communicators`` over the declared switches."""
    communicators: tuple[str, ...] = COMMUNICATORS
    """Those whose communication ``engine`` plays, where it leaves a node."""
    most_bytes_per_gpu: float = 64e6
    """No GPU sends more in one play: congestion is a matter of shares, and longer messages would
    only take longer to play."""
    queue_pairs: int = 1
    """Connections between two GPUs that share what one channel sends, each hashed to a path of its
    own (NCCL_IB_QPS_PER_CONNECTION)."""
    whole_step: bool | None = None
    """Of ``simulate``: also play the whole step, all of its communication on one network, and say
    what that costs beyond each dimension's own congestion (None: with ``flow``, where there are no
    ``neighbours``)."""
    budget_s: float | None = 60.0
    """CPU seconds for the whole step: what is known by then is the answer (None: no limit)."""
    neighbours: tuple[Neighbour, ...] = ()
    """Other jobs on the same switches, which communicate meanwhile."""
    failures: tuple[Failure, ...] = ()
    """Links that fail or slow down during a step played whole; packets find other ways."""
    packet: PacketSettings | None = None
    """Packets and queues, of the engines that play packets."""
    hybrid: HybridSettings | None = None
    """When packets may be skipped."""

    @property
    def plays_whole_step(self) -> bool:
        """Whether ``simulate`` plays the step whole."""
        if self.whole_step is None:
            return self.engine == "flow" and not self.neighbours
        return self.whole_step

    @property
    def packets(self) -> PacketSettings:
        """Packets and queues, by default where nothing is said of them."""
        return self.packet or PacketSettings()

    @property
    def sprays(self) -> bool:
        """Whether packets of one flow take several paths."""
        return self.engine == "packet" and self.packets.routing != "flow"

    @property
    def paths(self) -> int:
        """How many paths a flow must know: its own, or several to spray or to escape to."""
        return self.packets.paths if self.sprays or self.failures else 1

    @property
    def plays_alike(self) -> bool:
        """Whether transfers that share no link with others do what others like them do: packets
        on paths of their own that chance has no part in. Fluid flows are shared out faster than
        they are compared."""
        by_chance = self.packets.congestion == "dcqcn"
        return self.engine != "flow" and self.paths == 1 and not by_chance

    def check(self) -> None:
        """Refuse what cannot be played."""
        require_choice("network.engine", self.engine, NETWORKS)
        require_positive("network.most_bytes_per_gpu", self.most_bytes_per_gpu)
        if not 1 <= self.queue_pairs <= MOST_QUEUE_PAIRS:
            field, allowed = "network.queue_pairs", f"1..{MOST_QUEUE_PAIRS}"
            raise InputError(field, self.queue_pairs, "is out of range", allowed)
        if self.budget_s is not None:
            require_positive("network.budget_s", self.budget_s)
        if self.whole_step and self.engine == WHITEBOX:
            problem = "has no links to meet on"
            raise InputError("network.whole_step", True, problem, "network=flow, packet or hybrid")
        if len(self.neighbours) > MOST_NEIGHBOURS:
            value, allowed = f"{len(self.neighbours)} jobs", f"at most {MOST_NEIGHBOURS}"
            raise InputError("network.neighbours", value, "are too many", allowed)
        for at, each in enumerate(self.neighbours):
            each.check(f"network.neighbours[{at}]")
        if self.engine == WHITEBOX and self.neighbours:
            problem = "are not looked at with network=whitebox"
            value = f"{len(self.neighbours)} jobs"
            raise InputError("network.neighbours", value, problem, "network=flow, packet, hybrid")
        if self.whole_step and self.neighbours:
            problem, allowed = "is of our step alone", "false beside network.neighbours"
            raise InputError("network.whole_step", True, problem, allowed)
        if self.failures and (self.engine != "packet" or not self.whole_step):
            value, problem = (
                f"{len(self.failures)} links",
                "fail in a step played whole by packets",
            )
            allowed = "network=packet network.whole_step=true"
            raise InputError("network.failures", value, problem, allowed)
        for at, failure in enumerate(self.failures):
            failure.check(f"network.failures[{at}]")
        for name in (*self.communicators, *self.packets.class_of):
            if name not in COMMUNICATORS:
                hint = nearest_name(name, list(COMMUNICATORS))
                problem = "is no communicator that can be played"
                raise InputError("network.communicators", name, problem, COMMUNICATORS, hint)
        if self.engine != WHITEBOX and not self.communicators:
            raise InputError("network.communicators", [], "is empty", COMMUNICATORS)


@dataclass(frozen=True)
class CongestedNetwork:
    """An engine and the switches it plays over."""

    choice: NetworkChoice
    fabric: SwitchFabric

    def __hash__(self) -> int:
        return hash((self.choice.engine, self.choice.communicators, self.fabric.name))

    @property
    def settings(self) -> NetworkChoice:
        """Of communication played by itself; links fail only in a step played whole."""
        return replace(self.choice, failures=())

    @property
    def words(self) -> str:
        """The network in one line, for whoever reads a prediction made with it."""
        choice, fabric = self.choice, self.fabric
        played = choice.communicators
        words = "all that leaves nodes" if played == COMMUNICATORS else " ".join(played)
        words += f" congests as the {choice.engine} engine plays it over {fabric.name}"
        words += f" ({fabric.tiers} tiers"
        if fabric.planes > 1:
            words += f", {fabric.planes} planes"
        if fabric.routing != "ecmp":
            words += f", {fabric.routing} routing"
        if choice.queue_pairs > 1:
            words += f", {choice.queue_pairs} queue pairs a connection"
        if choice.neighbours:
            nodes = sum(each.nodes for each in choice.neighbours)
            words += f", {nodes} nodes of {len(choice.neighbours)} other jobs"
        if fabric.oversubscription not in (None, 1):
            words += f", {fabric.oversubscription:g}:1 oversubscribed"
        if fabric.pod_oversubscription != 1:
            words += f", {fabric.pod_oversubscription:g}:1 between pods"
        if fabric.link_health:
            words += f", {len(fabric.link_health)} links failed or degraded"
        return words + ")"
