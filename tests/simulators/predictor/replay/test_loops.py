"""Loops give the same compiled and as plain Python, and are compiled once that pays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.simulators.predictor.replay.programs import Program
from tests.simulators.predictor.replay.test_engine import programs
from tests.simulators.predictor.replay.test_sweep import paired, paired_programs
from trainscout.simulators.predictor.replay.engine import Tasks, loop
from trainscout.simulators.predictor.replay.loops import LOADING_TURNS, Loop
from trainscout.simulators.predictor.replay.sweep import sweep


def agree(tried: Loop, tasks: Tasks, last: np.ndarray) -> None:
    both = (each(*tasks.arrays, last) for each in (tried.plain, tried.compiled))
    for plain, compiled in zip(*both, strict=True):
        np.testing.assert_array_equal(plain, compiled)


@settings(max_examples=30)
@given(program=paired_programs())
def test_the_sweep_is_the_same_compiled(program: Program) -> None:
    tasks = paired(program)
    assert tasks.side is not None
    agree(sweep, tasks, tasks.side)


@settings(max_examples=30)
@given(program=programs(rates=True))
def test_the_event_loop_is_the_same_compiled(program: Program) -> None:
    tasks = program.tasks()
    agree(loop, tasks, tasks.stream_rank)


def double(values: np.ndarray) -> tuple[np.ndarray]:
    doubled = np.zeros(len(values), np.int64)
    for place in range(len(values)):
        doubled[place] = helped(values[place])
    return (doubled,)


def helped(value: int) -> int:
    return value + value


def test_it_is_compiled_once_that_pays() -> None:
    tried, values = Loop(double, helped), np.arange(3)
    for _ in range(2):
        assert tried(LOADING_TURNS // 2, values)[0].tolist() == [0, 2, 4]
    assert "compiled" not in vars(tried)
    assert tried(1, values)[0].tolist() == [0, 2, 4]
    assert "compiled" in vars(tried)


def test_it_is_compiled_at_once_where_much_is_to_be_played(monkeypatch) -> None:
    tried = Loop(double, helped)
    tried.load()
    monkeypatch.setattr(tried, "plain", None)
    assert tried(1, np.arange(3))[0].tolist() == [0, 2, 4]
