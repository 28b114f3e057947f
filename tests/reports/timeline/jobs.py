"""Jobs whose timelines are shown, small enough to look at every operation."""

from __future__ import annotations

from dataclasses import replace

from tests.samples import CLUSTER, GPU, MODEL, MOE_MODEL
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.memory_timeline import MemoryTimeline, memory_timeline
from trainscout.simulators.predictor.replay.pass_timeline import passes_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.replay.timeline import Timeline
from trainscout.simulators.predictor.replay.unroll import unroll
from trainscout.simulators.registry import SimulatorSpec

SPEC, SIMULATOR = SimulatorSpec(), ReplaySimulator()
RECIPES = {
    "one stage": Recipe(tp=8, sp=True),
    "pipeline": Recipe(tp=2, pp=4, sp=True),
    "interleaved": Recipe(tp=2, pp=4, vpp=2, overlap_grad_reduce=True, overlap_param_gather=True),
    "gpipe": Recipe(tp=2, pp=2, schedule="gpipe", overlap_grad_reduce=True),
    "context": Recipe(tp=2, cp=2, pp=2),
    "experts": Recipe(tp=2, pp=2, ep=4, sp=True),
    "fsdp": Recipe(tp=1, zero_stage=3),
    "recompute": Recipe(tp=2, pp=2, recompute="full", tp_comm_overlap=True, sp=True),
}


def job_of(name: str) -> Job:
    model = MOE_MODEL if name == "experts" else MODEL
    job = Job(replace(model, tied_embeddings=True), GPU, CLUSTER, Training(64, 1e9), RECIPES[name])
    check_job(job)
    return job


def played(job: Job, micro_batches: int = 4) -> tuple[Timeline, MemoryTimeline]:
    step = step_program(job, micro_batches)
    return unroll(step), memory_timeline(job, passes_of(step))
