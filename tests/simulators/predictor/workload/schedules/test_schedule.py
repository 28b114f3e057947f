"""Pipeline orders against hand-written tables and Megatron-LM's rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.workload.schedules.schedule import (
    BACKWARD,
    FORWARD,
    passes_alone,
    stage_order,
    warmup_passes,
)


def written(
    schedule: str, stage: int, stages: int, chunks: int, micro_batches: int, *, chunk_names: bool
) -> str:
    """The order as text: F or B, the chunk's letter, the micro-batch."""
    order = stage_order(schedule, stage, stages, chunks, micro_batches)
    return " ".join(
        f"{'FB'[pass_]}{'abcdef'[chunk] if chunk_names else ''}{micro}"
        for pass_, chunk, micro in order.T
    )


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"),
        (1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"),
        (2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"),
    ],
)
def test_1f1b_on_four_stages(stage: int, order: str) -> None:
    assert written("1f1b", stage, 4, 1, 6, chunk_names=False) == order


def test_gpipe_runs_all_forwards_first() -> None:
    for stage in range(3):
        order = "F0 F1 F2 F3 B0 B1 B2 B3"
        assert written("gpipe", stage, 3, 1, 4, chunk_names=False) == order


def test_breadth_first_runs_chunk_by_chunk() -> None:
    for stage in range(2):
        order = "Fa0 Fa1 Fa2 Fb0 Fb1 Fb2 Bb0 Bb1 Bb2 Ba0 Ba1 Ba2"
        assert written("gpipe", stage, 2, 2, 3, chunk_names=True) == order


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3"),
        (1, "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3"),
    ],
)
def test_interleaved_on_two_stages_of_two_chunks(stage: int, order: str) -> None:
    assert written("1f1b", stage, 2, 2, 4, chunk_names=True) == order


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        # Ten warm-up passes, of which there are only eight.
        (0, "Fa0 Fa1 Fa2 Fa3 Fb0 Fb1 Fb2 Fb3 Bb0 Bb1 Bb2 Bb3 Ba0 Ba1 Ba2 Ba3"),
        # Six.
        (2, "Fa0 Fa1 Fa2 Fa3 Fb0 Fb1 Fb2 Bb0 Fb3 Bb1 Bb2 Bb3 Ba0 Ba1 Ba2 Ba3"),
        # Four.
        (3, "Fa0 Fa1 Fa2 Fa3 Fb0 Bb0 Fb1 Bb1 Fb2 Bb2 Fb3 Bb3 Ba0 Ba1 Ba2 Ba3"),
    ],
)
def test_interleaved_on_four_stages_of_two_chunks(stage: int, order: str) -> None:
    assert written("1f1b", stage, 4, 2, 4, chunk_names=True) == order


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.booleans())


@given(shape=SHAPES, gpipe=st.booleans())
def test_every_pass_once_and_forward_before_backward(
    shape: tuple[int, int, int, bool], gpipe: bool
) -> None:
    stages, chunks, groups, _ = shape
    chunks = 1 if stages == 1 else chunks
    micro_batches = groups * stages
    schedule = "gpipe" if gpipe else "1f1b"
    for stage in range(stages):
        order = stage_order(schedule, stage, stages, chunks, micro_batches)
        assert order.shape == (3, 2 * chunks * micro_batches)
        passes = [tuple(column) for column in order.T.tolist()]
        assert len(set(passes)) == len(passes)
        place = {each: index for index, each in enumerate(passes)}
        for chunk in range(chunks):
            for micro in range(micro_batches):
                assert place[FORWARD, chunk, micro] < place[BACKWARD, chunk, micro]


@given(stages=st.integers(1, 8), micro_batches=st.integers(1, 20), stage_share=st.floats(0, 0.999))
def test_in_flight_micro_batches_of_1f1b(
    stages: int, micro_batches: int, stage_share: float
) -> None:
    stage = int(stages * stage_share)
    direction = stage_order("1f1b", stage, stages, 1, micro_batches)[0]
    in_flight = np.cumsum(np.where(direction == FORWARD, 1, -1))
    assert in_flight.max() == min(micro_batches, stages - stage)
    assert in_flight[-1] == 0


@given(stages=st.integers(2, 6), chunks=st.integers(2, 4), groups=st.integers(1, 4))
def test_interleaved_order_follows_the_virtual_micro_batches(
    stages: int, chunks: int, groups: int
) -> None:
    # Virtual micro-batch k: groups of `stages` micro-batches visit every chunk in turn, the
    # backward pass from the last chunk to the first.
    micro_batches = groups * stages
    table = [
        (chunk, group * stages + offset)
        for group in range(groups)
        for chunk in range(chunks)
        for offset in range(stages)
    ]
    for stage in range(stages):
        order = stage_order("1f1b", stage, stages, chunks, micro_batches)
        forward = [(int(c), int(m)) for d, c, m in order.T if d == FORWARD]
        backward = [(int(c), int(m)) for d, c, m in order.T if d == BACKWARD]
        assert forward == table
        assert backward == [(chunks - 1 - chunk, micro) for chunk, micro in table]
        warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(table))
        # Megatron runs one forward more before the first backward, unless there is none left.
        first_backward = order[0].tolist().index(BACKWARD)
        assert first_backward == min(warmup + 1, len(table))
        assert warmup_passes("1f1b", stage, stages, chunks, micro_batches) == warmup


@given(stages=st.integers(2, 6), chunks=st.integers(1, 4), groups=st.integers(1, 3))
def test_the_stages_orders_can_run_together(stages: int, chunks: int, groups: int) -> None:
    micro_batches = groups * stages
    orders = [
        stage_order("1f1b", stage, stages, chunks, micro_batches).T.tolist()
        for stage in range(stages)
    ]
    done: set[tuple[int, int, int, int]] = set()
    at = [0] * stages

    def needs(stage: int, direction: int, chunk: int, micro: int) -> tuple[int, int, int, int]:
        if direction == FORWARD:
            before = (stage - 1, chunk) if stage else (stages - 1, chunk - 1)
        elif stage == stages - 1 and chunk == chunks - 1:
            return stage, FORWARD, chunk, micro
        else:
            before = (stage + 1, chunk) if stage < stages - 1 else (0, chunk + 1)
        return before[0], direction, before[1], micro

    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            while at[stage] < len(orders[stage]):
                direction, chunk, micro = orders[stage][at[stage]]
                first = direction == FORWARD and stage == chunk == 0
                if not first and needs(stage, direction, chunk, micro) not in done:
                    break
                done.add((stage, direction, chunk, micro))
                at[stage] += 1
                moved = True
    assert at == [len(order) for order in orders]


def test_pairs_are_neighbours_of_unlike_micro_batches():
    # One stage: F0, then B0 F1, B1 F2, then B2.
    assert passes_alone("1f1b", 0, 1, 1, 3).tolist() == [0, 5]
    # The first of four stages: three warm-up passes and three cool-down ones are alone.
    assert passes_alone("1f1b", 0, 4, 1, 8).tolist() == [0, 1, 2, 13, 14, 15]
    assert len(passes_alone("gpipe", 0, 4, 1, 8)) == 14
    # Halves of backward passes run with nothing.
    assert len(passes_alone("zb-h1", 0, 4, 1, 8)) == 24


@pytest.mark.parametrize("stage", range(4))
def test_dualpipe_pairs_passes_of_unlike_micro_batches(stage):
    order = stage_order("dualpipe", stage, 4, 2, 16)
    paired = np.delete(order, passes_alone("dualpipe", stage, 4, 2, 16), axis=1)
    pairs = paired.T.reshape(-1, 2, 3)
    assert len(pairs) > 0
    for one, other in pairs:
        assert {int(one[0]), int(other[0])} == {FORWARD, BACKWARD}
        assert one[1:].tolist() != other[1:].tolist()


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("chunks", [2, 3])
def test_between_warm_up_and_cool_down_every_pass_is_in_a_pair(stage, chunks):
    alone = passes_alone("1f1b", stage, 4, chunks, 16)
    gaps = np.diff(alone)
    assert (gaps > 1).sum() == 1
