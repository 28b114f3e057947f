"""Dependency rules of the user's own in programs that the built-in workload makes."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.in_process import command
from tests.simulators.jobs import GPT175B, MOE, TINY, make_job
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.assemble import Assembler, Program
from trainscout.simulators.predictor.replay.engine import run
from trainscout.simulators.predictor.replay.rules import operations_of, ruled
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program

MODEL = replace(TINY, num_layers=16)
SHARDED = [
    {"zero_stage": 0, "overlap_grad_reduce": True},
    {"zero_stage": 1, "overlap_grad_reduce": True, "overlap_param_gather": True},
    {"zero_stage": 1},
    {"zero_stage": 3, "pp": 1, "overlap_grad_reduce": True},
]


def job_of(model=MODEL, **recipe: object) -> Job:
    shape = {"nodes": 8, "gpus_per_node": 2, "batch": 32, "pp": 4}
    return make_job(model, **{**shape, **recipe})


def program_of(job: Job) -> tuple[Program, Assembler]:
    whole = step_program(job)
    return whole.program, whole.assembler


def reductions_last(operations):
    """No gradient is reduced before a rank's last backward pass."""
    for rank in {each.rank for each in operations}:
        back = [each for each in operations if (each.rank, each.phase) == (rank, "backward")]
        *_, last = [each for each in back if each.kind == "kernel"]
        yield from ((last, each) for each in back if each.kind in ("all_reduce", "reduce_scatter"))


def one_at_a_time(operations):
    """The first stage begins a micro-batch when the last has ended the one before."""
    ends = {each.rank for each in operations}
    passes = {
        (each.rank, each.name, each.micro_batch): each
        for each in operations
        if each.kind == "kernel" and each.micro_batch is not None
    }
    for (rank, name, micro), each in passes.items():
        if (rank, name) == (min(ends), "forward") and micro:
            yield passes[max(ends), "backward", micro - 1], each


@pytest.mark.parametrize("recipe", SHARDED)
@pytest.mark.parametrize("model", [MODEL, replace(MOE, num_layers=16)])
def test_no_rules_change_nothing(recipe, model):
    job = job_of(model, **recipe)
    plain = ReplaySimulator().without_error_bar(job)
    same = ReplaySimulator().obeying(lambda _: ()).without_error_bar(job)
    assert same.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)
    assert same.memory == plain.memory
    assert same.breakdown_s == pytest.approx(plain.breakdown_s, abs=1e-9 * plain.step_time_s)
    assert "dependencies by rules of your own" in same.assumptions


@pytest.mark.parametrize("rules", [reductions_last, one_at_a_time])
def test_what_waits_begins_when_the_other_has_ended(rules):
    # Large enough for several buckets of gradients.
    job = make_job(
        GPT175B, nodes=8, batch=32, tp=8, sp=True, pp=4, overlap_grad_reduce=True, zero_stage=1
    )
    program, assembler = program_of(job)
    times = run(ruled(program, assembler, rules).tasks)
    pairs = list(rules(operations_of(program, assembler)))
    assert pairs
    for before, after in pairs:
        assert times.start[after.event] >= times.end[before.event]
    late, plain = (
        each.without_error_bar(job)
        for each in (ReplaySimulator().obeying(rules), ReplaySimulator())
    )
    assert late.step_time_s > plain.step_time_s
    assert sum(late.breakdown_s.values()) == pytest.approx(late.step_time_s)


@pytest.mark.parametrize("recipe", SHARDED)
def test_every_task_but_the_barrier_is_an_operation_once(recipe):
    job = job_of(**recipe)
    program, assembler = program_of(job)
    events = [each.event for each in operations_of(program, assembler)]
    missing = set(range(len(program.tasks.work))) - set(events)
    assert len(events) == len(set(events))
    assert [program.blocks.get(task) for task in missing] == [None]
    exchanged = np.flatnonzero(program.structure.communication)
    assert set(exchanged.tolist()) <= set(events)


def backwards(operations):
    first, second, *_ = operations
    yield second, first


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (backwards, "wait for each other"),
        (lambda found: [(found[0], found[0])], "would wait for itself"),
        (lambda found: [found[0]], "is no pair"),
        (lambda found: found.nothing, "AttributeError"),
        (lambda found: sys.exit(0), "SystemExit"),
    ],
)
def test_wrong_rules_are_refused(rules, problem):
    with pytest.raises(InputError, match=problem):
        ReplaySimulator().obeying(rules).without_error_bar(job_of())


@pytest.mark.parametrize(
    ("text", "more", "code", "stated"),
    [
        ("def edges(operations):\n    return []\n", [], 0, "rules of your own"),
        ("x = 1\n", [], 2, "has no function edges"),
        ("raise SystemExit(0)\n", [], 2, "SystemExit"),
        (None, [], 2, "is no file"),
        ("def edges(o): return []\n", ["timeline.file=x.json"], 2, "cannot be combined with"),
        ("def edges(o): return []\n", ["network=flow"], 2, "cannot be combined with"),
    ],
)
def test_a_rule_file(text, more, code, stated, tmp_path, capsys):
    rules = tmp_path / "rules.py"
    if text is not None:
        rules.write_text(text)
    asked = ["model=gpt22b", "cluster=a100_512", "recipe.tp=8", "recipe.pp=4", f"rules={rules}"]
    assert command("simulate")([*asked, *more]) == code
    shown = capsys.readouterr()
    assert stated in " ".join((shown.out + shown.err).split())
