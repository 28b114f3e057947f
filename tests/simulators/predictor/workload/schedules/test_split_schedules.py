"""Schedules that split backward passes, against the bubbles and activations published for them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulators.jobs import GPT175B, TINY, make_job
from trainscout.simulators.predictor.question.schedules import SCHEDULES, routes
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    backward_block,
    waiting_bytes,
)
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order

SPLIT = [name for name, schedule in SCHEDULES.items() if schedule.splits_backward]


EQUAL = {FORWARD: 1, INPUT_GRADIENT: 1, WEIGHT_GRADIENT: 1, BACKWARD: 2}


def played(
    schedule: str, stages: int, chunks: int, micro_batches: int, long: dict[int, int] = EQUAL
) -> list[tuple[int, int]]:
    """When each stage begins and ends, in the unit that passes over one chunk are ``long`` in."""
    orders = [
        stage_order(schedule, stage, stages, chunks, micro_batches).T.tolist()
        for stage in range(stages)
    ]
    ways = routes(schedule, stages, chunks)
    done: dict[tuple[int, int, int, int], int] = {}
    at, span = [0] * stages, [(0, 0)] * stages
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        before = sum(at)
        for stage in range(stages):
            while at[stage] < len(orders[stage]):
                kind, chunk, micro = orders[stage][at[stage]]
                way = ways[micro * len(ways) // micro_batches]
                place = way.index((stage, chunk))
                awaited = None
                if kind == FORWARD and place:
                    awaited = (FORWARD, *way[place - 1], micro)
                elif kind in (BACKWARD, INPUT_GRADIENT):
                    behind = way[place + 1 : place + 2]
                    awaited = (BACKWARD, *behind[0], micro) if behind else (0, stage, chunk, micro)
                elif kind == WEIGHT_GRADIENT:
                    awaited = (BACKWARD, stage, chunk, micro)
                if awaited is not None and awaited not in done:
                    break
                begin = max(span[stage][1], done[awaited] if awaited else 0)
                end = begin + long[kind]
                span[stage] = (span[stage][0] if at[stage] else begin, end)
                done[BACKWARD if kind == INPUT_GRADIENT else kind, stage, chunk, micro] = end
                at[stage] += 1
        assert sum(at) > before, "the schedule waits for itself"
    return span


@pytest.mark.parametrize("stages", range(3, 17))
def test_v_half_stays_ahead_of_1f1b_where_passes_differ(stages: int) -> None:
    """Where a stage's passes of several micro-batches would begin at once, none is on time when
    they are not equally long."""
    long = {FORWARD: 11, INPUT_GRADIENT: 12, WEIGHT_GRADIENT: 7, BACKWARD: 19}
    whole = {kind: 2 * each for kind, each in long.items()}
    micro = 3 * stages
    halved = max(end for _, end in played("v-half", stages, 2, micro, long))
    assert halved < 0.97 * max(end for _, end in played("1f1b", stages, 1, micro, whole))


def most_kept(schedule: str, stage: int, stages: int, chunks: int, micro_batches: int) -> float:
    """Micro-batches of a stage whose weights have no gradients yet."""
    kept = most = 0
    for kind, _, _ in stage_order(schedule, stage, stages, chunks, micro_batches).T:
        kept += {FORWARD: 1, INPUT_GRADIENT: 0}.get(int(kind), -1)
        most = max(most, kept)
    return most / chunks


@pytest.mark.parametrize("stages", [4, 8])
def test_bubbles_and_activations_are_the_published_ones(stages: int) -> None:
    """Qi et al. 2023, table 1, at equal passes; 2024's V-Half p / 2m and V-Min 2p / 3m; DeepSeek's
    PP + 1 chunks. A backward pass is two."""
    micro = 3 * stages
    found = {}
    for schedule, chunks in (
        *(("1f1b", 1), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("v-half", 2), ("v-min", 2)),
        *(("dualpipe-v", 2), ("dualpipe", 2)),
    ):
        spans = played(schedule, stages, chunks, micro)
        begins, ends = zip(*spans, strict=True)
        busy = 3 * chunks * micro // len(routes(schedule, stages, chunks))
        found[schedule] = (
            (max(ends) - busy) / chunks,
            (max(end - begin for begin, end in spans) - busy) / chunks,
            max(most_kept(schedule, stage, stages, chunks, micro) for stage in range(stages)),
        )
        assert min(begins) == 0
    behind = stages - 1
    assert found["1f1b"][::2] == (3 * behind, stages)
    assert found["zb-h1"][::2] == (behind, stages)
    assert found["zb-h2"][1:] == (0, 2 * stages - 1)
    assert found["zb-v"][1:] == (0, stages)
    assert found["v-half"][0] == 1.5 * behind
    assert found["v-half"][2] == (stages + 2) // 2
    assert 2 * behind - 0.5 == found["v-min"][0]
    assert found["v-min"][2] == (stages + 4) // 3
    assert found["dualpipe-v"][2] == stages + 0.5
    assert 2 * found["dualpipe"][2] == stages + 1
    assert found["dualpipe"][0] < found["zb-h1"][0]


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 3), (6, 13), (4, 12)])
def test_every_micro_batch_passes_every_chunk_once(
    schedule: str, stages: int, micro_batches: int
) -> None:
    kind = SCHEDULES[schedule]
    if "dualpipe" in schedule:
        micro_batches = 2 * stages + 2 * micro_batches
    chunks = 2 if kind.ends_meet else 1
    played(schedule, stages, chunks, micro_batches)
    copies = len(routes(schedule, stages, chunks))
    for stage in range(stages):
        runs: Counter[tuple[int, int, int]] = Counter()
        for way, chunk, micro in stage_order(schedule, stage, stages, chunks, micro_batches).T:
            for half in (INPUT_GRADIENT, WEIGHT_GRADIENT) if way == BACKWARD else (int(way),):
                runs[half, int(chunk), int(micro)] += 1
        assert len(runs) == sum(runs.values()) == 3 * chunks * micro_batches // copies


def test_halves_of_a_backward_pass_are_all_of_it() -> None:
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=12, sp=True)
    whole = build_workload(job).stages[1].chunks[0].runs[0].backward
    first, second = (backward_block(whole, kind) for kind in (INPUT_GRADIENT, WEIGHT_GRADIENT))

    def names(*blocks: object) -> Counter[str]:
        return Counter(getattr(op, "name", "") for block in blocks for op in block.ops)

    assert names(first, second) == names(whole)
    assert {name for name in names(second) if name.endswith("wgrad")} == {
        name for name in names(whole) if name.endswith("wgrad")
    }
    assert not any(name.endswith("dgrad") for name in names(second))


@pytest.mark.parametrize(("precision", "each"), [("bf16", 32), ("fp8", 16), ("nvfp4", 9)])
def test_what_waits_for_gradients_of_weights_is_the_published_32_bytes(
    precision: str, each: int
) -> None:
    """Qi et al. 2023, table 1: 32 s b h bytes of a transformer layer, and of few bits fewer: half,
    or four bits with a scale of eight for 16 of them."""
    job = make_job(TINY, batch=16, pp=4, precision=precision)
    chunk = build_workload(job).stages[1].chunks[0]
    tokens = job.recipe.micro_batch * TINY.sequence_length
    assert waiting_bytes(chunk, 1) == 3 * each * tokens * TINY.hidden_size
