"""Pipeline schedules: in which order a stage runs its forward and backward passes.

Each order is an integer array of shape (3, n): kind of pass (``passes.py``), model chunk,
micro-batch; one column per pass, in execution order.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.schedule_file import is_file, read_schedule
from trainscout.simulators.predictor.question.schedules import schedule_kind

from .passes import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from .split_schedules import Pass, behind_1f1b, both_ways, controlled_v, zero_bubble_v

Order = NDArray[np.int64]
WRITTEN = {"F": FORWARD, "B": BACKWARD, "I": INPUT_GRADIENT, "W": WEIGHT_GRADIENT}
"""The kinds of passes as files say them."""


@functools.lru_cache(maxsize=512)
def stage_order(schedule: str, stage: int, stages: int, chunks: int, micro_batches: int) -> Order:
    """The order of one stage.

    Args:
        schedule: ``gpipe`` (breadth-first when ``chunks`` > 1), ``1f1b`` (then interleaved), or
            one that splits the backward pass, or that of a file.
        stage: 0-based pipeline stage of ``stages``.
        chunks: model chunks per stage (virtual pipeline stages).
        micro_batches: micro-batches per step; a multiple of ``stages`` when interleaved.
    """
    if is_file(schedule):
        return _written_order(schedule, stage, micro_batches)
    if schedule_kind(schedule).splits_backward:
        return _fixed(_split_order(schedule, stage, stages, chunks, micro_batches))
    total = chunks * micro_batches
    group = micro_batches_in_turn(schedule, stages, micro_batches)
    forward = _passes(FORWARD, group, chunks, micro_batches)
    backward = _passes(BACKWARD, group, chunks, micro_batches)
    warmup = warmup_passes(schedule, stage, stages, chunks, micro_batches)
    order = np.empty((3, 2 * total), dtype=np.int64)
    order[:, :warmup] = forward[:, :warmup]
    steady = total - warmup
    order[:, warmup : warmup + 2 * steady : 2] = forward[:, warmup:]
    order[:, warmup + 1 : warmup + 2 * steady : 2] = backward[:, :steady]
    order[:, warmup + 2 * steady :] = backward[:, steady:]
    order.setflags(write=False)
    return order


def _written_order(schedule: str, stage: int, micro_batches: int) -> Order:
    file = read_schedule(schedule)
    if micro_batches != file.micro_batches:
        problem = f"has {file.micro_batches} micro-batches and not {micro_batches}"
        raise InputError("recipe.schedule", schedule, problem)
    return _fixed([(WRITTEN[kind], chunk, micro) for kind, chunk, micro in file.orders[stage]])


def _fixed(passes: list[Pass]) -> Order:
    order = np.array(passes, dtype=np.int64).T
    order.setflags(write=False)
    return order


def _split_order(
    schedule: str, stage: int, stages: int, chunks: int, micro_batches: int
) -> list[Pass]:
    if schedule == "zb-v":
        return zero_bubble_v(stage, stages, micro_batches)
    if schedule == "dualpipe-v":
        return both_ways(stage, stages, micro_batches)
    if schedule == "dualpipe":
        return _mirrored(stage, stages, micro_batches)
    if schedule_kind(schedule).v_shaped:
        return _controlled_v(schedule, stages, micro_batches)[stage]
    forward, backward = (
        [(way, int(chunk), int(micro)) for way, chunk, micro in passes.T]
        for way in (FORWARD, BACKWARD)
        for passes in (_passes(way, stages, chunks, micro_batches),)
    )
    total, behind = chunks * micro_batches, stages - stage - 1
    if schedule == "zb-h2":
        return list(behind_1f1b(forward, backward, min(total, 2 * behind), 2 * stage))
    warmup = min(total, behind + (chunks - 1) * stages)
    return list(behind_1f1b(forward, backward, warmup, stage))


_controlled_v = functools.lru_cache(maxsize=64)(controlled_v)


def _mirrored(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """DualPipe: the second half of the stages is the first seen from the other end, and the second
    half of the micro-batches runs the other way."""
    mirrored, half = stage >= stages // 2, micro_batches // 2
    seen = stages - 1 - stage if mirrored else stage
    return [
        (kind, chunk ^ mirrored, micro + half * (chunk ^ mirrored))
        for kind, chunk, micro in both_ways(seen, stages // 2, half)
    ]


@functools.lru_cache(maxsize=512)
def passes_alone(
    schedule: str, stage: int, stages: int, chunks: int, micro_batches: int
) -> NDArray[np.int64]:
    """The places in a stage's order of passes that no other runs with: a forward pass and a whole
    backward pass next to it are a pair, unless they are of the same chunk and micro-batch. So the
    first forward passes and the last backward ones are alone, and halves of backward passes
    (Megatron-LM's ``combined_1f1b``; DualPipe's overlapped chunks, DeepSeek-AI 2024, section
    3.2.1)."""
    way, *which = stage_order(schedule, stage, stages, chunks, micro_batches).tolist()
    whose = list(zip(*which, strict=True))

    alone = np.ones(len(way), dtype=np.bool_)
    place = 0
    while place + 1 < len(way):
        both = set(way[place : place + 2]) == {FORWARD, BACKWARD}
        # As early as they can: where passes alternate, none between is left over.
        if both and whose[place] != whose[place + 1]:
            alone[place : place + 2] = False
            place += 1
        place += 1
    places = np.flatnonzero(alone)
    places.setflags(write=False)
    return places


def warmup_passes(schedule: str, stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Forward passes a stage runs before its first backward.

    1F1B: ``stages - stage - 1``; interleaved: twice that plus ``(chunks - 1) * stages``
    (Narayanan et al. 2021, section 2.2, as Megatron-LM schedules it); GPipe: all.
    """
    total = chunks * micro_batches
    if schedule == "gpipe":
        return total
    behind = stages - stage - 1
    return min(total, behind if chunks == 1 else 2 * behind + (chunks - 1) * stages)


def micro_batches_in_turn(schedule: str, stages: int, micro_batches: int) -> int:
    """How many micro-batches pass one chunk of a stage before its next: interleaved as many as
    there are stages, breadth-first all (Lamy-Poirier 2023, figure 2d)."""
    return micro_batches if schedule == "gpipe" else stages


def _passes(pass_: int, group: int, chunks: int, micro_batches: int) -> Order:
    """All passes of one direction: groups of so many micro-batches visit chunk by chunk."""
    if chunks == 1:
        micro = np.arange(micro_batches)
        chunk = np.zeros_like(micro)
    else:
        index = np.arange(chunks * micro_batches)
        turn, within = np.divmod(index, group * chunks)
        chunk, offset = np.divmod(within, group)
        micro = turn * group + offset
        if pass_ == BACKWARD:
            chunk = chunks - 1 - chunk
    return np.stack([np.full_like(micro, pass_), chunk, micro])
