"""Dependency rules of a user's own, against closed forms and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.in_process import command
from tests.simulators.virtual_cluster.execution.scripts import (
    BIG,
    MIB,
    SMALL,
    Script,
    collective_s,
    gemm_s,
    job,
    overlapping,
    pipeline,
    play,
    transfer_s,
)
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.files import trace_path, write_trace


def reductions_last(operations):
    """Communication begins when all kernels before the last have ended."""
    for rank in {each.rank for each in operations}:
        mine = [each for each in operations if each.rank == rank]
        *others, _ = [each for each in mine if each.kind == "kernel"]
        yield from ((others[-1], each) for each in mine if each.kind == "all_reduce")


def test_communication_that_may_not_overlap():
    wire_s = collective_s("all_reduce", 256 * MIB, tuple(range(8)))
    in_turn_s = wire_s + gemm_s(BIG, 8) + gemm_s(SMALL, 8)
    step = play(*job(8, overlapping), rules=reductions_last)
    assert step.step_time_s == pytest.approx(in_turn_s)
    assert play(*job(8, overlapping)).step_time_s < in_turn_s
    assert any("rules of your own" in each for each in step.assumptions)


def just_in_time(operations):
    """The first of two stages begins a micro-batch when the last is done with the one before."""
    first, last = (
        [each for each in operations if each.rank == rank and each.kind == "kernel"]
        for rank in (0, 1)
    )
    forwards, backwards = [first[0], *first[1:-1:2]], last[1::2]
    yield from zip(backwards, forwards[1:], strict=False)


@pytest.mark.parametrize("micro_batches", [2, 5])
def test_a_schedule_of_ones_own(micro_batches):
    step = play(*pipeline(2, micro_batches), rules=just_in_time)
    forward_s, backward_s = gemm_s(SMALL, 2), gemm_s(BIG, 2)
    expected_s = micro_batches * (2 * forward_s + backward_s) + backward_s
    hops_s = 4 * (micro_batches + 2) * transfer_s(1, 0, 1, (0, 1))
    assert expected_s <= step.step_time_s < expected_s + hops_s
    assert step.step_time_s > play(*pipeline(2, micro_batches)).step_time_s


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (lambda found: [(found[1], found[0])], "wait for each other"),
        (lambda found: [(found[0], found[0])], "would wait for itself"),
        (lambda found: [(found[0], 7)], "is no operation that runs"),
        (lambda found: [found[0]], "is no pair"),
        (lambda found: found.nothing, "AttributeError"),
    ],
)
def test_wrong_rules_are_refused(rules, problem):
    def write(script: Script) -> None:
        script.gemm(BIG)
        script.gemm(SMALL)

    with pytest.raises(InputError, match=problem):
        play(*job(1, write), rules=rules)


@pytest.mark.parametrize(
    ("text", "code", "stated"),
    [
        ("def edges(operations):\n    return []\n", 0, "Step time"),
        ("x = 1\n", 2, "has no function edges"),
        ("1 / 0\n", 2, "ZeroDivisionError"),
        (None, 2, "is no file"),
    ],
)
def test_a_rule_file(text, code, stated, tmp_path: Path, capsys):
    layout = Layout(tp=2, dp=2, pp=2, micro_batches=4, layers=2)
    for rank in (0, 1, 4, 5):
        write_trace(trace_path(tmp_path, rank), megatron_trace(layout, rank, steps=2))
    rules = tmp_path / "rules.py"
    if text is not None:
        rules.write_text(text)
    asked = [tmp_path, "--cluster", "h800_96", "--rules", rules]
    assert command("trace", "replay")(asked) == code
    shown = capsys.readouterr()
    assert stated in shown.out + shown.err
