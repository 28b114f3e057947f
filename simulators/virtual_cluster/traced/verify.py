"""Re-checks recipes: Megatron-Core runs ranks of every stage, and the traces are replayed."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.communicators import spans
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.virtual_cluster.execution import TracedStep, replay_ranks
from trainscout.simulators.virtual_cluster.traced.figures import (
    Work,
    builtin_work,
    differences,
    traced_work,
)
from trainscout.simulators.virtual_cluster.traced.layer_spec import check_traceable, job_json
from trainscout.simulators.virtual_cluster.traced.recorder import ask_several
from trainscout.simulators.virtual_cluster.traced.verification import (
    RankCheck,
    RankFigures,
    Verification,
)
from trainscout.simulators.virtual_cluster.traces.events import Trace
from trainscout.simulators.virtual_cluster.traces.files import read_trace, trace_path

# It happens inside Transformer Engine's kernels, where no trace looks.
_WITHOUT_TP_OVERLAP = "both sides without TP overlap, which cannot be traced"
# Micro-batches beyond those that fill a plain pipeline.
BEYOND_WARMUP = 2


def verify(job: Job) -> Verification:
    """Trace one rank of every pipeline stage of a valid job, and replay them together.

    TP overlap is left out on both sides. Whatever keeps the job from being traced or replayed is
    the ``problem`` of the answer.
    """
    micro_batches = traced_micro_batches(job)
    empty = Verification(job.recipe, micro_batches, job.num_micro_batches)
    if job.recipe.tp_comm_overlap:
        job = replace(job, recipe=replace(job.recipe, tp_comm_overlap=False))
        empty = replace(empty, notes=(_WITHOUT_TP_OVERLAP,))
    try:
        check_verifiable(job)
        # As many sequences as the traced micro-batches hold.
        sequences = job.dp * job.recipe.micro_batch * micro_batches
        shorter = replace(job, training=replace(job.training, global_batch_size=sequences))
        with tempfile.TemporaryDirectory(prefix="trainscout-ranks-") as directory:
            traces = trace_ranks(shorter, Path(directory))
        step = replay_ranks(traces, job.gpu, job.cluster, job.framework, host="declared")
    except (InputError, RuntimeError) as error:
        return replace(empty, problem=str(error))
    return compared(empty, shorter, traces, step)


def check_verifiable(job: Job) -> None:
    """Refuse what no rank of Megatron-Core can be traced for.

    Raises:
        InputError: naming the field.
    """
    check_traceable(job)
    if not job.model.is_plain:
        problem = "is not verified: whole ranks are traced of models without halves of layers"
        raise InputError("model.layers", job.model.layers, problem)
    if job.schedule != "1f1b":
        problem = "is not a schedule of Megatron-Core"
        raise InputError("recipe.schedule", job.schedule, problem, "1f1b")


def traced_micro_batches(job: Job) -> int:
    """As few as show each stage's most in flight and its period, which the others repeat."""
    stages = job.recipe.pp
    # The interleaved schedule goes by rounds of the pipeline, and its first takes two to fill.
    wanted = 2 * stages if job.recipe.vpp > 1 else stages + BEYOND_WARMUP
    return min(job.num_micro_batches, wanted)


def traced_ranks(job: Job) -> list[int]:
    """The first rank of every stage: first of its tensor, context and data-parallel peers."""
    ((stages, apart),) = spans(job)["pp"]
    return [stage * apart for stage in range(stages)]


def trace_ranks(job: Job, directory: Path) -> list[Trace]:
    """Trace one rank of every stage, in as many processes as there are cores for.

    Raises:
        RuntimeError: for what a rank raised, or when a process ends early.
    """
    questions = rank_questions(job, directory)
    count = min(os.cpu_count() or 1, len(questions))
    return ask_for_ranks(job, questions, count)


def rank_questions(job: Job, directory: Path) -> list[dict[str, Any]]:
    """What a tracing process is asked for: two steps of one rank of every stage.

    Adam's state comes into being in the first, as short as the schedule can be; the second is
    like all that follow.
    """
    recipe = job.recipe
    steps = [recipe.pp if recipe.vpp > 1 else 1, job.num_micro_batches]
    return [
        {
            "job": job_json(job),
            "micro_batches": steps,
            "rank": rank,
            "file": str(trace_path(directory, rank)),
        }
        for rank in traced_ranks(job)
    ]


def ask_for_ranks(
    job: Job, questions: Sequence[dict[str, Any]], processes: int = 1
) -> list[Trace]:
    """Trace ranks of jobs on the GPUs and nodes of ``job``.

    Raises:
        RuntimeError: for what a rank raised, or when a process ends early.
    """
    about = {"gpu": dataclasses.asdict(job.gpu), "local_world_size": job.cluster.gpus_per_node}
    answers = ask_several(about, questions, processes)
    for question, answer in zip(questions, answers, strict=True):
        if "failed" in answer:
            raise RuntimeError(f"rank {question['rank']}: {answer['failed']}")
    return [read_trace(Path(question["file"])) for question in questions]


def compared(
    empty: Verification, job: Job, traces: Sequence[Trace], step: TracedStep
) -> Verification:
    prediction, workload = ReplaySimulator().without_error_bar(job), build_workload(job)
    peaks = {rank.rank: rank.memory for rank in step.ranks}
    checks = []
    for stage, trace in enumerate(traces):
        rank = trace.header.rank
        ours = builtin_work(job, workload, stage)
        theirs = traced_work(trace)
        memory = prediction.memory.per_stage[stage]
        traced = peaks[rank]
        checks.append(
            RankCheck(
                rank,
                stage,
                _figures(ours, memory.peak_allocated_bytes, memory.peak_reserved_bytes),
                _figures(theirs, traced.peak_allocated_bytes, traced.peak_reserved_bytes),
                tuple(map(str, differences(ours.shapes, theirs.shapes))),
            )
        )
    return replace(
        empty,
        builtin_step_s=prediction.step_time_s,
        traced_step_s=step.step_time_s,
        builtin_parts_s=prediction.breakdown_s,
        traced_parts_s=step.breakdown_s,
        ranks=tuple(checks),
        notes=(*empty.notes, *_notes(prediction, step)),
    )


def _figures(work: Work, allocated: int, reserved: int) -> RankFigures:
    return RankFigures(
        allocated, reserved, work.parameter_bytes, work.gemm_flops, work.communicated_bytes
    )


def _notes(prediction: Prediction, step: TracedStep) -> tuple[str, ...]:
    fits = "fits" if step.fits else "does not fit"
    agrees = "" if step.fits == prediction.fits else ", unlike predicted"
    return (f"traced, it {fits} in memory{agrees}", *map(str, step.mismatches))
