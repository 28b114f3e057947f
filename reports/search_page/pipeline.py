"""The pipeline of one recipe: what every stage does when, as bars of a Gantt chart."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.registry import SimulatorSpec, measured_table

# More bars can neither be distinguished nor drawn at once.
MOST_BARS = 5000
_TICKS_PER_S = 1e6


def shown_micro_batches(job: Job, most_bars: int = MOST_BARS) -> int:
    """How many micro-batches to show: enough that the pipeline fills, runs steadily for half its
    depth and drains, as far as ``most_bars`` passes allow."""
    recipe, unit = job.recipe, job.micro_batch_round
    wanted = recipe.pp + max(4, recipe.pp // 2)
    drawable = most_bars // (2 * recipe.pp * recipe.vpp)
    count = min(wanted, max(drawable, unit))
    least = job.least_micro_batches
    return min(max(least, -(-count // unit) * unit), job.num_micro_batches)


def pipeline_bars(job: Job, simulator: SimulatorSpec) -> dict[str, Any]:
    """Bars in columns: ``stage``, ``lane``, ``kind`` (into ``kinds``), ``chunk``, ``micro_batch``
    (-1: none), ``start`` and ``length`` in microseconds, and ``recompute``, how much of it repeats
    a forward pass; or ``unavailable``, the reason why there are none.
    """
    if simulator.name != "replay":
        return {"unavailable": f"simulator={simulator.name} plays whole ranks, no single passes"}
    from trainscout.simulators.predictor.replay.pass_timeline import LANES, PASS_KINDS, passes_of
    from trainscout.simulators.predictor.replay.step_program import step_program

    played = passes_of(
        step_program(
            job,
            shown_micro_batches(job),
            calibration=simulator.calibration,
            measured=measured_table(simulator.measured_kernels),
            network=simulator.network,
        )
    )
    start = np.rint(played.start_s * _TICKS_PER_S).astype(np.int64)
    end = np.rint(played.end_s * _TICKS_PER_S).astype(np.int64)
    return {
        "kinds": list(PASS_KINDS),
        "lanes": list(LANES),
        "stages": job.recipe.pp,
        "chunks": job.recipe.vpp,
        "micro_batches": played.micro_batches,
        "num_micro_batches": played.num_micro_batches,
        "stage": played.stage.tolist(),
        "lane": played.lane.tolist(),
        "kind": played.kind.tolist(),
        "chunk": played.chunk.tolist(),
        "micro_batch": played.micro_batch.tolist(),
        "start": start.tolist(),
        "length": (end - start).tolist(),
        "recompute": np.rint(played.recompute_s * _TICKS_PER_S).astype(np.int64).tolist(),
    }
