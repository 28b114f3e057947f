"""The files that show a step operation by operation, and its memory."""

from __future__ import annotations

import io
from pathlib import Path

from trainscout.simulators.predictor.io.output import check_output, write_output
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.memory_timeline import (
    MEMORY_KINDS,
    MemoryTimeline,
    memory_timeline,
)
from trainscout.simulators.predictor.replay.pass_timeline import passes_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice, shown_ranks
from trainscout.simulators.predictor.replay.unroll import unroll
from trainscout.simulators.registry import Simulator, SimulatorSpec, measured_table


def write_timeline_files(
    job: Job, spec: SimulatorSpec, simulator: Simulator, choice: TimelineChoice
) -> None:
    """Play a step of a valid job and write what was chosen.

    ``simulator`` is that of ``spec``; one of your own has the built-in workload replayed.

    Raises:
        InputError: for ranks or micro-batches that the job does not have, settings without
            effect, and what cannot be written.
    """
    ranks = _check(job, choice)
    if choice.file is None and choice.chakra is None and choice.memory is None:
        return
    count = min(job.num_micro_batches, 2 * job.recipe.pp)
    if choice.micro_batches is not None:
        count = choice.micro_batches
    measured = measured_table(spec.measured_kernels)
    workload = simulator.workload(job) if isinstance(simulator, ReplaySimulator) else None
    step = step_program(job, count, spec.calibration, measured, workload, spec.network)
    memory = memory_timeline(job, passes_of(step), step.workload)
    if choice.memory is not None:
        write_output("timeline.memory", Path(choice.memory), memory_csv(memory))
    if choice.file is None and choice.chakra is None:
        return
    timeline = unroll(step)
    if choice.file is not None:
        from trainscout.reports.timeline.chrome import write_chrome

        write_chrome("timeline.file", Path(choice.file), job, timeline, ranks, memory)
    if choice.chakra is not None:
        # Reading and writing traces takes longer to load than a prediction to make.
        from trainscout.reports.timeline.chakra import write_recipe_chakra

        write_recipe_chakra("timeline.chakra", Path(choice.chakra), job, timeline, ranks)


def _check(job: Job, choice: TimelineChoice) -> tuple[int, ...]:
    """The ranks to show; refuses what could not be written before anything is played."""
    trace, memory = (None if each is None else Path(each) for each in (choice.file, choice.memory))
    check_output("timeline.file", trace)
    check_output("timeline.memory", memory, [trace])
    if choice.file is None and choice.chakra is None:
        for name in ("stages", "ranks"):
            _refuse_without(name, getattr(choice, name), "timeline.file or timeline.chakra")
        if choice.memory is None:
            files = "timeline.file, timeline.chakra or timeline.memory"
            _refuse_without("micro_batches", choice.micro_batches, files)
    return shown_ranks(job, choice.stages, choice.ranks)


def _refuse_without(name: str, value: object, files: str) -> None:
    if value is not None:
        shown = list(value) if isinstance(value, tuple) else value
        raise InputError(
            f"timeline.{name}", shown, "is of no use without a timeline", f"with {files}"
        )


def memory_csv(memory: MemoryTimeline) -> str:
    """Bytes by kind on a rank of every stage: a row holds until the stage's next."""
    text = io.StringIO()
    columns = [*(f"{kind}_bytes" for kind in MEMORY_KINDS), "allocated_bytes"]
    print("stage", "at_s", *columns, sep=",", file=text)
    rows = zip(
        memory.stage.tolist(),
        memory.at_s.tolist(),
        memory.kind_bytes.tolist(),
        memory.allocated_bytes.tolist(),
        strict=True,
    )
    for stage, at_s, kinds, allocated in rows:
        print(stage, f"{at_s:.9f}", *kinds, allocated, sep=",", file=text)
    return text.getvalue()
