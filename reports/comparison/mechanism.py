"""What a rank of the critical stage does in one step: the quantities that times follow from.

Counted in the built-in workload of the job, so that the reasons given for a difference are those
the prediction was made with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.collectives.measured import bus_factor
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Block,
    Collective,
    Communicator,
    Gemm,
    GroupedGemm,
    SendRecv,
)
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
    group: Communicator

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
    groups: dict[str, Communicator] = {}
    for block, times in _blocks(job, prediction.critical_stage):
        for op in block.ops:
            match op:
                case Gemm():
                    flops += 2.0 * op.m * op.n * op.k * op.batch * times
                    kernels += times
                case GroupedGemm():
                    flops += 2.0 * op.groups * op.m_per_group * op.n * op.k * times
                    kernels += times
                case Attention():
                    flops += _attention_flops(op) * times
                    kernels += times
                case Collective() | SendRecv() if op.communicator in _DIMENSION:
                    name = _DIMENSION[op.communicator]
                    group = workload.communicators[op.communicator]
                    share = bus_factor(op.kind, group.size) if isinstance(op, Collective) else 1.0
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


def _blocks(job: Job, stage: int) -> Iterator[tuple[Block, int]]:
    """Blocks of a stage's passes, and how often each runs in a step."""
    for chunk in build_workload(job).stages[stage].chunks:
        for run in chunk.runs:
            yield run.forward, run.count * job.num_micro_batches
            yield run.backward, run.count * job.num_micro_batches


def _attention_flops(op: Attention) -> float:
    square = 2.0 * op.batch * op.heads * op.seq_q * op.seq_k * (op.head_dim + op.head_dim_v)
    return square * (0.5 if op.causal else 1.0) * (2.5 if op.pass_ == "bwd" else 1.0)
