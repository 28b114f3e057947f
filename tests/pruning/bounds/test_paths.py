"""Chains exist: their counts are those of paths through the schedule's graph."""

import numpy as np
import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.pruning.bounds.layouts import Layout
from trainscout.pruning.bounds.paths import find_paths
from trainscout.simulators.predictor.workload.schedules.passes import FORWARD
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order


def longest(layout, schedule, m, weights, blocking):
    """End of every stage's last pass by playing the schedule pass by pass."""
    pp, vpp, kinds = layout.pp, layout.vpp, len(layout.kinds)
    orders = [stage_order(schedule, stage, pp, vpp, m).T.tolist() for stage in range(pp)]
    link = [weights[-2] if crosses else weights[-1] for crosses in layout.crosses]
    link = [0.0] * pp if pp == 1 else link
    end: dict[tuple[int, int, int, int], float] = {}
    at, clock = [0] * pp, [0.0] * pp
    while any(at[stage] < len(orders[stage]) for stage in range(pp)):
        for stage in range(pp):
            while at[stage] < len(orders[stage]):
                way, chunk, micro = orders[stage][at[stage]]
                step = 1 if way == FORWARD else -1
                place = chunk * pp + stage - step
                first = place < 0 if way == FORWARD else place >= pp * vpp
                before = None if first else (way, place % pp, place // pp, micro)
                if before is not None and before not in end:
                    break
                edge = link[stage - 1] if way == FORWARD else link[stage]
                lag = 0.0 if first or blocking else edge
                ready = 0.0 if before is None else end[before] + lag
                seconds = weights[layout.kind_of[stage][chunk] + (way != FORWARD) * kinds]
                ends_model = chunk * pp + stage == (pp * vpp - 1 if way == FORWARD else 0)
                if blocking and not ends_model:
                    seconds += link[stage] if way == FORWARD else link[stage - 1]
                clock[stage] = max(clock[stage], ready) + seconds
                end[way, stage, chunk, micro] = clock[stage]
                at[stage] += 1
    return clock


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("recipe", "micro_batches"),
    [
        ({"pp": 1}, 4),
        ({"pp": 2}, 1),
        ({"pp": 4}, 2),
        ({"pp": 4}, 12),
        ({"pp": 4, "schedule": "gpipe"}, 6),
        ({"pp": 4, "vpp": 3, "schedule": "gpipe"}, 6),
        ({"pp": 4, "vpp": 3}, 4),
        ({"pp": 4, "vpp": 3}, 12),
        ({"pp": 2, "vpp": 2}, 2),
        ({"pp": 6, "vpp": 2}, 18),
    ],
)
def test_no_chain_outlasts_the_schedule_and_some_come_close(recipe, micro_batches, blocking):
    job = make_job(TINY, nodes=recipe["pp"], gpus_per_node=2, **recipe)
    layout, schedule = Layout.of(job), job.recipe.schedule
    paths = find_paths(layout, schedule, micro_batches, blocking=blocking)
    rng = np.random.default_rng(0)
    closest = []
    for spread in (0.0, 0.3, 3.0):
        for _ in range(10):
            weights = np.exp(rng.normal(0, spread, 2 * len(layout.kinds) + 2))
            weights[-2:] *= 0.1
            ends = longest(layout, schedule, micro_batches, weights, blocking)
            to_end_s = paths.longest_s(weights[None])[0, :, 0]
            for bound, stage in zip(to_end_s, layout.stages, strict=True):
                assert bound <= ends[stage] * (1 + 1e-12)
                if stage == 0:
                    closest.append(bound / ends[0])
    assert np.median(closest) > 0.95
