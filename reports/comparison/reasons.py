"""Why one recipe spends more on a part of its step than another, from the mechanism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainscout.reports.wording import format_percent
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.collectives.measured import bus_factor
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.megatron import build_workload


@dataclass(frozen=True)
class Traffic:
    """Messages of one dimension that a rank takes part in during one step.

    ``bytes`` is what they hold (NCCL's size), ``sent_bytes`` what the rank sends of it, by rings:
    2 (n - 1) / n of an all-reduce, (n - 1) / n of a gather, which is what compares one with the
    other and groups of several sizes.
    """

    messages: int
    bytes: int
    sent_bytes: float
    group: ir.Communicator

    @property
    def message_bytes(self) -> float:
        return self.bytes / self.messages if self.messages else 0.0


@dataclass(frozen=True)
class Mechanism:
    """One step of a rank of the critical stage.

    ``matrix_flops`` are the FLOPs of its matrix products and attention, ``kernels`` its launches,
    ``repeated_share`` what recomputation adds to the model's FLOPs (whole job). ``traffic`` by
    dimension (tp, cp, ep) within passes, ``boundary`` the messages to and from neighbouring
    stages. ``parameters`` are those it holds, ``updated`` those it updates.
    """

    job: Job
    stage: int
    layers: int
    matrix_flops: float
    kernels: int
    repeated_share: float
    traffic: dict[str, Traffic]
    boundary: Traffic
    parameters: int
    updated: float

    @property
    def ideal_bubble(self) -> float:
        """Share of a pass that filling and draining the pipeline takes when all stages are equal:
        (pp - 1) / (vpp x micro-batches), Narayanan et al. 2021, section 2.2."""
        recipe = self.job.recipe
        return (recipe.pp - 1) / (recipe.vpp * self.job.num_micro_batches)


_DIMENSION = {"etp": "tp", "ep": "ep", "etp_ep": "ep", "tp": "tp", "cp": "cp"}


def mechanism(job: Job, prediction: Prediction) -> Mechanism:
    """The quantities behind a prediction of ``job``."""
    workload = build_workload(job)
    stage = workload.stages[prediction.critical_stage]
    flops, kernels = 0.0, 0
    counted: dict[str, tuple[int, int, float]] = {}
    groups: dict[str, ir.Communicator] = {}
    for block, times in _blocks(job, prediction.critical_stage):
        for op in block.ops:
            match op:
                case ir.Gemm() | ir.GroupedGemm() | ir.Attention():
                    flops += float(ir.kernel_flops(op)) * times
                    kernels += times
                case ir.Collective() | ir.SendRecv() if op.communicator in _DIMENSION:
                    name = _DIMENSION[op.communicator]
                    group = workload.communicators[op.communicator]
                    share = (
                        bus_factor(op.kind, group.size) if isinstance(op, ir.Collective) else 1.0
                    )
                    messages, size, sent = counted.get(name, (0, 0, 0.0))
                    size += op.bytes * times
                    counted[name] = messages + times, size, sent + share * op.bytes * times
                    groups.setdefault(name, group)
    recipe, batches = job.recipe, job.num_micro_batches
    hops = 0
    if recipe.pp > 1:
        ends = prediction.critical_stage in (0, recipe.pp - 1)
        sides = 2 * recipe.vpp - (1 if ends else 0)
        # Forward a tensor, backward its gradient.
        hops = 2 * sides * batches
    passed = hops * workload.stage_boundary_bytes
    whole = step_flops(job)
    parameters = stage.parameters.total
    replicas = job.dp * recipe.cp
    updated = float(parameters)
    if recipe.zero_stage >= 1:
        updated = stage.parameters.dense / replicas + stage.parameters.expert / job.expert_dp
    return Mechanism(
        job=job,
        stage=prediction.critical_stage,
        layers=job.layers_per_stage[prediction.critical_stage],
        matrix_flops=flops,
        kernels=kernels,
        repeated_share=whole.hardware / whole.model - 1,
        traffic={
            name: Traffic(messages, size, sent, groups[name])
            for name, (messages, size, sent) in counted.items()
        },
        boundary=Traffic(hops, passed, float(passed) / 2, workload.communicators["pp"]),
        parameters=parameters,
        updated=updated,
    )


def _blocks(job: Job, stage: int) -> Iterator[tuple[ir.Block, int]]:
    """Blocks of a stage's passes, and how often each runs in a step."""
    for chunk in build_workload(job).stages[stage].chunks:
        for run in chunk.runs:
            yield run.forward, run.count * job.num_micro_batches
            yield run.backward, run.count * job.num_micro_batches


# Differences below this share of the shorter step are not worth a sentence.
NOTABLE_SHARE = 0.002
# Quantities nearer than this are called equal.
_EQUAL = 0.005


@dataclass(frozen=True)
class Reason:
    """By how much the second recipe spends more on ``part`` (seconds), and why, in words."""

    part: str
    difference_s: float
    words: str


def reasons(
    jobs: tuple[Job, Job], predictions: tuple[Prediction, Prediction], names: tuple[str, str]
) -> list[Reason]:
    """A reason for each notable difference of two breakdowns, the largest first.

    ``names`` is what the two recipes are called in the sentences.
    """
    first, second = predictions
    least_s = NOTABLE_SHARE * min(first.step_time_s, second.step_time_s)
    pair = _Pair(mechanism(jobs[0], first), mechanism(jobs[1], second), predictions, names)
    return [
        Reason(part, gap, _REASONS[part](pair) if part in _REASONS else "")
        for part, gap in sorted(second.gaps_s(first).items(), key=lambda item: -abs(item[1]))
        if abs(gap) > least_s
    ]


@dataclass(frozen=True)
class _Pair:
    first: Mechanism
    second: Mechanism
    predictions: tuple[Prediction, Prediction]
    names: tuple[str, str]

    @property
    def sides(self) -> tuple[tuple[str, Mechanism], tuple[str, Mechanism]]:
        return (self.names[0], self.first), (self.names[1], self.second)

    def each(self, words: Callable[[Mechanism], str]) -> str:
        return self.contrast(words(self.first), words(self.second))

    def contrast(self, one: str, other: str) -> str:
        """``a ..., b ...``, or ``each ...`` where the words are the same."""
        if one == other:
            return f"each {one}"
        return f"{self.names[0]} {one}, {self.names[1]} {other}"


def _bubble(pair: _Pair) -> str:
    def words(side: Mechanism) -> str:
        recipe, batches = side.job.recipe, side.job.num_micro_batches
        if recipe.pp == 1:
            return "has no pipeline"
        return (
            f"({recipe.pp} - 1) / ({recipe.vpp} x {batches}) = {format_percent(side.ideal_bubble)}"
        )

    ideal = "filling and draining the pipeline takes (pp - 1) / (vpp x micro-batches) of a pass: "
    rest = ""
    for (name, side), prediction in zip(pair.sides, pair.predictions, strict=True):
        recipe = side.job.recipe
        if recipe.pp == 1:
            continue
        bubble_s = prediction.breakdown_s.get("bubble", 0.0)
        busy_s = prediction.step_time_s - bubble_s
        beyond_s = bubble_s - side.ideal_bubble * busy_s
        if beyond_s > 0.01 * prediction.step_time_s:
            share = format_percent(beyond_s / prediction.step_time_s)
            layers = sorted(set(side.job.layers_per_stage))
            what = "unequal stages" if len(layers) > 1 else "the ends' extra work and transfers"
            rest += f"; {name} waits {share} of its step beyond that for {what}"
    return ideal + pair.each(words) + rest


def _compute(pair: _Pair) -> str:
    words = []
    one, other = pair.first, pair.second
    if abs(one.repeated_share - other.repeated_share) > _EQUAL:
        words.append(
            pair.each(
                lambda side: f"repeats {format_percent(side.repeated_share)} of the model's FLOPs"
            )
        )
    if not _close(one.matrix_flops, other.matrix_flops):
        words.append(
            pair.each(
                lambda side: f"multiplies {side.matrix_flops / 1e15:,.3g} PFLOP a step and GPU"
            )
        )
    rates = [
        side.matrix_flops / prediction.breakdown_s["compute"] / 1e12
        for (_, side), prediction in zip(pair.sides, pair.predictions, strict=True)
    ]
    if not _close(*rates):
        speeds = pair.contrast(*(f"runs at {rate:,.0f} TFLOP/s" for rate in rates))
        words.append(f"{speeds} ({pair.each(_format_gemm)})")
    return "; ".join(words) or "the same kernels"


def _format_gemm(side: Mechanism) -> str:
    job = side.job
    tokens = job.sequence_length * job.recipe.micro_batch // job.recipe.cp
    moe = job.model.moe
    width = job.model.ffn_hidden_size // job.recipe.tp
    if moe is not None:
        width = moe.ffn_hidden_size // job.etp
        return f"has GEMMs of {tokens:,} tokens before routing by expert width {width:,}"
    return f"has GEMMs of {tokens:,} tokens by MLP width {width:,}"


def _traffic(dimension: str) -> Callable[[_Pair], str]:
    def words(side: Mechanism) -> str:
        traffic = side.traffic.get(dimension)
        if traffic is None or traffic.group.size == 1:
            return "sends nothing"
        return f"sends {_format_traffic(traffic)}{_format_hidden(side, dimension)}"

    return lambda pair: pair.each(words)


def _format_hidden(side: Mechanism, dimension: str) -> str:
    recipe = side.job.recipe
    if dimension == "tp" and recipe.tp_comm_overlap:
        return ", beside the GEMMs it belongs to"
    if dimension == "ep" and recipe.overlap_moe_expert_parallel_comm:
        return ", beside another micro-batch"
    return ""


def _format_traffic(traffic: Traffic) -> str:
    group = traffic.group
    where = "inside a node" if group.nodes == 1 else f"over {group.nodes} nodes"
    return (
        f"{traffic.sent_bytes / 2**30:,.0f} GiB a step and GPU for {traffic.messages:,} messages "
        f"of {traffic.message_bytes / 2**20:,.1f} MiB in groups of {group.size} {where}"
    )


def _pipeline(pair: _Pair) -> str:
    def words(side: Mechanism) -> str:
        boundary = side.boundary
        if not boundary.messages:
            return "has no pipeline"
        beside = ", beside computation" if side.job.recipe.vpp > 1 else ", each waited for"
        return (
            f"sends its neighbours {boundary.sent_bytes / 2**30:,.1f} GiB a step and GPU in "
            f"messages of {boundary.message_bytes / 2**20:,.1f} MiB{beside}"
        )

    return pair.each(words)


def _data_parallel(pair: _Pair) -> str:
    def words(side: Mechanism) -> str:
        recipe, replicas = side.job.recipe, side.job.dp * side.job.recipe.cp
        if replicas == 1 and side.job.expert_dp == 1:
            return "has no replicas"
        hidden = [
            what
            for what, on in (
                ("gradients", recipe.overlap_grad_reduce or recipe.zero_stage >= 2),
                ("parameters", recipe.overlap_param_gather or side.job.gathers_units),
            )
            if on
        ]
        beside = f", {' and '.join(hidden)} beside computation" if hidden else ", nothing hidden"
        reduced = (
            f"sums gradients of {side.parameters / 1e9:.2f} B parameters a GPU over {replicas} "
            f"replicas (zero_stage={recipe.zero_stage}{beside})"
        )
        if not side.job.gathers_units:
            return reduced
        return (
            f"gathers its weights for each of {side.job.num_micro_batches} micro-batches and "
            + reduced
        )

    return pair.each(words)


def _optimizer(pair: _Pair) -> str:
    words = pair.each(lambda side: f"updates {side.updated / 1e6:,.0f} M parameters a GPU")
    if _close(pair.first.updated, pair.second.updated):
        words += "; the rest surrounds the update (gradient norm, copies)"
    return words


def _slowdown(pair: _Pair) -> str:
    def words(side: Mechanism) -> str:
        recipe = side.job.recipe
        names = ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather")
        on = [name for name in names if getattr(recipe, name)]
        if recipe.zero_stage == 3:
            on.append("all gathers and reductions of zero_stage=3")
        return "hides " + (" and ".join(on) if on else "only what its backward passes hide")

    return "kernels lose SMs and memory bandwidth to communication beside them: " + pair.each(
        words
    )


def _host(pair: _Pair) -> str:
    return "the GPU waits where kernels end before the next is launched: " + pair.each(
        lambda side: f"launches {side.kernels:,} matrix kernels a step"
    )


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _EQUAL * max(abs(one), abs(other))


_REASONS: dict[str, Callable[[_Pair], str]] = {
    "bubble": _bubble,
    "compute": _compute,
    "tp_communication": _traffic("tp"),
    "cp_communication": _traffic("cp"),
    "ep_communication": _traffic("ep"),
    "pp_communication": _pipeline,
    "dp_communication": _data_parallel,
    "overlap_slowdown": _slowdown,
    "stragglers": lambda _: (
        "a fixed share of kernel time, which all GPUs wait for, so it goes with computation"
    ),
    "optimizer": _optimizer,
    "host": _host,
    "waiting_for_data": lambda pair: (
        "no step is shorter than what a data loader takes for its rank's samples: "
        + pair.each(lambda side: f"{side.job.loading_s:.3g} s")
    ),
}
