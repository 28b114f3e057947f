"""What uneven experts cost one recipe: the same job once more, with equally popular experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ir import GroupedGemm
from trainscout.simulators.predictor.workload.program import Workload

from .prices import Pricer
from .simulator import ReplaySimulator


@dataclass(frozen=True)
class ExpertCost:
    """One step; ``gemm_s`` are the seconds of the busiest GPU's expert GEMMs, on the stage that
    has most."""

    prediction: Prediction
    gemm_s: float


@dataclass(frozen=True)
class ExpertLoad:
    """A job as it is, and with balanced experts."""

    balanced: ExpertCost
    uneven: ExpertCost


def expert_load(job: Job, prediction: Prediction, simulator: ReplaySimulator) -> ExpertLoad | None:
    """What uneven experts cost a valid job, predicted as ``prediction``; None: its experts are
    even."""
    moe = job.model.moe
    if moe is None or moe == moe.balanced:
        return None
    even = replace(job, model=replace(job.model, moe=moe.balanced))
    return ExpertLoad(
        balanced=ExpertCost(simulator.simulate(even), _gemm_s(even, simulator.workload(even))),
        uneven=ExpertCost(prediction, _gemm_s(job, simulator.workload(job))),
    )


def _gemm_s(job: Job, workload: Workload) -> float:
    pricer = Pricer.of(job, workload.communicators)
    stages = (
        sum(
            priced.seconds * run.count
            for run in stage.runs
            for block in (run.forward, run.backward)
            for priced in pricer.operations(block)
            if isinstance(priced.op, GroupedGemm)
        )
        for stage in workload.stages
    )
    return max(stages) * job.num_micro_batches
