"""What its work takes a rank's host: launches, and the CPU seconds of the script between them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from trainscout.simulators.predictor.question.cluster import Cluster, HostShare
from trainscout.simulators.predictor.question.errors import require_positive
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.host import host_pace, moved_s
from trainscout.simulators.predictor.workload.ir import Gemm
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch

from .communicators import part_of

# An operation of a module in a trace is as many launches as PyTorch makes of it: 34 of the 15 of
# a Llama layer's forward pass (Transformers 5.24), which took profiled hosts 23 us each.
_LAUNCHES_OF_OPERATION = 34 / 15
# What PyTorch's own backward operations take profiled hosts (``host_launch_s`` of torch_eager).
_BUILT_IN_S = 14e-6
_DP, _TP = "dp_communication", "tp_communication"


@dataclass(frozen=True)
class HostCost:
    """``launch_s`` for each launch, ``forward_s`` more for each in a forward pass,
    ``gap_factor`` times the script's CPU seconds (0: they are left out), and ``memory_s`` for each
    byte of the host's memory that its CPU reads or writes.

    ``product_s`` more for each product of tensor-parallel ranks outside of compiled regions;
    ``unit_s`` for each unit that FSDP gathers in a forward pass or reduces in a backward one.
    ``built_in_s``: what a launch of autograd's own takes at most, which no Python frame makes.
    ``framework``: whose they are; ``others``: those of frameworks that have ``code``, one of which
    counts instead where places that launch are in it.
    """

    launch_s: float
    forward_s: float = 0.0
    gap_factor: float = 1.0
    memory_s: float = 0.0
    product_s: float = 0.0
    unit_s: float = 0.0
    built_in_s: float = math.inf
    framework: str = UNDECLARED.name
    code: tuple[str, ...] = ()
    others: tuple[HostCost, ...] = ()

    def __post_init__(self) -> None:
        times = ("launch_s", "forward_s", "gap_factor", "memory_s", "product_s", "unit_s")
        for name in times:
            require_positive(f"host.{name}", getattr(self, name), allow_zero=True)

    @classmethod
    def of(
        cls,
        framework: Framework,
        cluster: Cluster,
        gpu: Gpu,
        *,
        cpu: bool,
        factor: float = 1.0,
    ) -> HostCost:
        """CPU seconds of the script where they are known (``cpu``), else as declared for the CPUs
        of the cluster's vendor, for ``framework`` or that of its alternatives that launches.

        Declared figures are those of a framework's Python and of the driver together, so they are
        never added to CPU seconds: what launches cost beside those is the driver's own.
        ``factor``: how much longer all of it takes (``Factors.host_time``).
        """
        memory_s = moved_s(1, HostShare.of(gpu, cluster))
        if cpu:
            launch_s = 0.0 if framework.cuda_graphs else UNDECLARED.host_launch_s
            return cls(launch_s * factor, 0.0, factor, memory_s)
        paced = 0.0 if framework.cuda_graphs else factor * host_pace(framework, cluster.cpu)
        return cls(
            framework.host_launch_s * paced,
            framework.host_forward_s / _LAUNCHES_OF_OPERATION * paced,
            0.0,
            memory_s,
            framework.host_tp_product_s * paced,
            framework.host_unit_s * paced if framework.torch_wrappers else 0.0,
            _BUILT_IN_S * paced,
            framework.name,
            framework.code,
            tuple(
                cls.of(each, cluster, gpu, cpu=False, factor=factor)
                for each in framework.alternatives
                if each.code
            ),
        )

    @property
    def least_launch_s(self) -> float:
        """What a launch takes at least, whoever it is by, autograd too."""
        costs = (self, *self.others)
        return min(min(each.launch_s, each.built_in_s) for each in costs)

    def words(self, asked: str) -> str:
        """What is charged, and by whom, where the framework ``asked`` for was named."""
        text = f"host: {self.launch_s * 1e6:.3g} us a launch"
        if self.gap_factor:
            cpu = "CPU seconds of the script (more if other work slowed this machine)"
            return text.replace("host: ", f"host: {cpu}, and ")
        if self.forward_s:
            text += f", {self.forward_s * 1e6:.3g} more in forward passes"
        if self.product_s:
            text += f", {self.product_s * 1e6:.3g} more a product of tensor-parallel ranks"
        if self.unit_s:
            text += f", {self.unit_s * 1e6:.3g} more a unit that FSDP gathers or reduces"
        if self.framework == UNDECLARED.name:
            return f"{text}, the driver's own (--framework NAME: as declared for one)"
        if self.framework == asked:
            return f"{text}, as declared for {asked}"
        return (
            f"{text}, as declared for {self.framework}, whose code launches "
            "(--framework NAME: another's)"
        )


class HostCalls:
    """Seconds of a rank's calls that launch something, by what came before them.

    ``cost``: that of the framework in whose code most places that launch are, so far.
    """

    def __init__(self, cost: HostCost) -> None:
        self.cost = cost
        self.phase = events.SETUP
        self._others = cost.others
        self._places: Counter[str] = Counter()
        self._batch: int | None = None
        # Of this rank's groups, by what their communication is shown under.
        self._groups: dict[str, set[str]] = defaultdict(set)
        self._compiled = 0
        self._placed = False

    def take(self, event: events.Event, launches: Iterable[Launch]) -> list[float]:
        """The seconds of each call: ``launches``, one for a communication, one for all sends and
        receives of a batch, and one for the copy that reads a value."""
        found = [self.operation_s(each.times, each.content, each.site) for each in launches]
        if isinstance(event, events.PointToPoint):
            batch, self._batch = self._batch, event.batch
            if event.batch is None or event.batch != batch:
                found.append(self._launches_s(1))
        elif isinstance(event, events.Collective):
            unit_s = self.cost.unit_s if self._is_unit(event) else 0.0
            found.append(self._launches_s(1) + unit_s)
        elif isinstance(event, events.ValueRead):
            found.append(self._launches_s(1))
        else:
            self.learn(event)
        return found

    def operation_s(self, times: int, content: object, site: int | None) -> float:
        """Seconds of an operation's launches; ``content``: what it was lowered to."""
        if site is None and self._placed and self.phase == events.BACKWARD:
            seconds = times * min(self.cost.launch_s, self.cost.built_in_s)
        else:
            seconds = self._launches_s(times)
        if self.cost.product_s and self._groups[_TP] and not self._compiled:
            assert isinstance(content, Lowered)
            seconds += self.cost.product_s * sum(type(each) is Gemm for each in content.kernels)
        return seconds

    def _launches_s(self, times: int) -> float:
        forward_s = self.cost.forward_s if self.phase == events.FORWARD else 0.0
        return times * (self.cost.launch_s + forward_s)

    def learn(self, event: events.Event) -> None:
        """What the cost of later calls depends on."""
        if isinstance(event, events.Phase):
            self.phase = event.phase
        elif isinstance(event, events.Group):
            if len(event.ranks) > 1:
                self._groups[part_of(event.description)].add(event.name)
        elif isinstance(event, events.Begin | events.End):
            if event.kind == "fused":
                self._compiled += 1 if isinstance(event, events.Begin) else -1
        elif isinstance(event, events.Site):
            self._placed = True
            file = f"/{event.file}/"
            for each in self._others:
                if any(f"/{folder}/" in file for folder in each.code):
                    self._places[each.framework] += 1
                    self.cost = max(self._others, key=lambda one: self._places[one.framework])

    def _is_unit(self, event: events.Collective) -> bool:
        gathers = self.phase == events.FORWARD and event.kind == "all_gather"
        reduces = self.phase == events.BACKWARD and event.kind == "reduce_scatter"
        return (gathers or reduces) and event.group in self._groups[_DP]
