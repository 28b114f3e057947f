"""Memory over the step: bytes by kind on every pipeline stage, from pass to pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.memory.footprint import (
    PassBytes,
    held_bytes,
    pass_bytes,
    statics_of,
)
from trainscout.simulators.predictor.memory.static import Static
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Workload
from trainscout.simulators.predictor.workload.schedules.passes import FORWARD, PASS_NAMES
from trainscout.simulators.predictor.workload.weights.step_end import update_bytes

from .engine import Floats, Ints
from .pass_timeline import PASS_KINDS, PassTimeline

MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "temporary")
_PASSES = [PASS_KINDS.index(name) for name in PASS_NAMES]


@dataclass(frozen=True)
class MemoryTimeline:
    """What is allocated on one rank of every stage, in rows by stage and time.

    ``stage``, ``at_s``: shape (rows,); ``kind_bytes``: shape (rows, kinds), the bytes of each of
    ``MEMORY_KINDS`` from ``at_s`` on, until the stage's next row. A pass holds its peak all the
    while. Its most over the whole step is the prediction's ``peak_allocated_bytes``; what the
    allocator does not see (NCCL's buffers, the CUDA context) is left out as it is there.
    """

    stage: Ints
    at_s: Floats
    kind_bytes: Ints

    @property
    def allocated_bytes(self) -> Ints:
        """The sum of all kinds, shape (rows,)."""
        total: Ints = self.kind_bytes.sum(axis=1)
        return total


def memory_timeline(
    job: Job, passes: PassTimeline, workload: Workload | None = None
) -> MemoryTimeline:
    """Memory along ``passes`` of a valid job.

    Args:
        job: the question.
        passes: its pass timeline, of any number of micro-batches.
        workload: the job's, where it is not the built-in source's.
    """
    workload = workload or build_workload(job)
    statics = statics_of(job, workload)
    during = pass_bytes(job, workload, passes.micro_batches, statics)
    at_s, rows, stages = [], [], []
    for index, stage in enumerate(workload.stages):
        held = held_bytes(job, stage, index, workload.stage_boundary_bytes)
        updating = update_bytes(stage.parameters, job)
        times, kinds = _stage_rows(index, passes, during, statics[id(stage)], held, updating)
        at_s.append(times)
        rows.append(kinds)
        stages.append(np.full(len(times), index))
    return MemoryTimeline(np.concatenate(stages), np.concatenate(at_s), np.concatenate(rows))


def _stage_rows(
    index: int, passes: PassTimeline, during: PassBytes, static: Static, held: int, updating: int
) -> tuple[Floats, Ints]:
    """Times and bytes by kind of one stage: at the step's start, then as passes begin and end, and
    as the optimizer begins where it holds anything (``updating``); ``held`` are there all step."""
    shown = (passes.stage == index) & np.isin(passes.kind, _PASSES)
    count = int(shown.sum())
    last = 1 + 2 * count
    at_s = np.zeros(last + (updating > 0))
    at_s[1:last:2], at_s[2:last:2] = passes.start_s[shown], passes.end_s[shown]
    kinds = np.empty((len(at_s), len(MEMORY_KINDS)), dtype=np.int64)
    kinds[:] = [*(static.kinds[kind] for kind in MEMORY_KINDS[:3]), 0, held]
    kinds[1:last:2, 3] += during.activations[index, :count]
    kinds[1:last:2, 4] += during.temporary[index, :count]
    kinds[2:last:2, 3] += during.kept[index, :count]
    if updating:
        optimizer = (passes.stage == index) & (passes.kind == PASS_KINDS.index("optimizer"))
        at_s[last], kinds[last, 4] = passes.start_s[optimizer].max(), updating + held
    absent = np.full((len(at_s), 2), static.most_absent)
    absent[1:last:2] = during.absent[index, :count]
    forward = passes.kind[shown] == PASS_KINDS.index(PASS_NAMES[FORWARD])
    absent[2:last:2][~forward] = static.absent_at_update
    absent[last:] = static.absent_at_update
    kinds[:, :2] -= absent
    # What a pass leaves is seen only where the next one does not begin at once.
    seen = np.append(at_s[1:] > at_s[:-1], True)
    return at_s[seen], kinds[seen]
