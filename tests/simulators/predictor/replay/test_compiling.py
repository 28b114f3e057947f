"""What is compiled means what it means in Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.replay.compiling import compiled

HALF = 0.5


def twisted(values, weights, table, seen, out):  # type: ignore[no-untyped-def]
    """A little of everything that is read."""
    count = 0
    total = 0.0
    for at in range(len(values)):
        seen[at] = False
        if values[at] < 0 and at > 0 and weights[at - 1] >= 0.0:
            continue
        if values[at] == 7 or (not seen[at] and weights[at] != HALF):
            seen[at] = True
            count += 1
        else:
            total = total - weights[at] * -HALF
        larger, smaller = _ordered(values[at], at >> 1)
        for column in range(1, larger):
            if column > 3:
                break
            out[at] += table[at, column] / 3.0 + smaller
    turns = 5
    while True:
        turns -= 1
        if turns <= 0 or total > 2:
            break
        total += max(turns, total)
    out[0] = total
    return count


def _ordered(first, second):  # type: ignore[no-untyped-def]
    if first > second:
        return first, second
    return second, first


def assigns_a_slice(values):  # type: ignore[no-untyped-def]
    values[1:] = 0
    return 0


INTS, FLOATS, TRUTHS = np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.bool_)
COMPILED = compiled(twisted, [INTS, FLOATS, FLOATS[None], TRUTHS, FLOATS])


@given(
    rows=st.lists(st.tuples(st.integers(-3, 9), st.floats(-2, 2) | st.just(HALF)), min_size=1),
    seed=st.integers(0, 9),
)
def test_means_what_it_means_in_python(rows: list[tuple[int, float]], seed: int) -> None:
    values, weights = (np.array(column) for column in zip(*rows, strict=True))
    table = np.random.default_rng(seed).normal(size=(len(rows), 4))
    seen, out = np.ones(len(rows), np.bool_), np.zeros(len(rows))
    plain, machine = ([values, weights, table, seen.copy(), out.copy()] for _ in range(2))
    assert twisted(*plain) == COMPILED(*machine)
    for one, other in zip(plain, machine, strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_types_are_converted_and_other_orders_copied() -> None:
    values, weights = np.array([2, 5], np.int32), np.array([0.25, 9.0, 1.0, 9.0])[::2]
    table, out = np.asfortranarray(np.arange(8.0).reshape(2, 4)), np.zeros(2)
    assert COMPILED(values, weights, table, np.zeros(2, np.bool_), out) == 2
    assert math.isclose(out[1], (5 + 6 + 7) / 3.0)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="1:"):
        compiled(assigns_a_slice, [np.zeros(2)])
