"""Pipeline schedules of one's own: a built-in one, written as a file, is the built-in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.reports.dialects.jobs import DENSE
from tests.reports.launch_import.samples import framework
from tests.reports.launch_import.samples import model as declared_model
from tests.samples import CLUSTER, GPU, TRAINING
from tests.simulators.jobs import MOE, TINY, make_job
from tests.simulators.schedule_files import write_schedule
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.reports.launch.directory import launches
from trainscout.reports.launch_import.read import read_launch
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.schedule_file import (
    parse_schedule,
    pinned,
    read_schedule,
)
from trainscout.simulators.predictor.question.schedules import SCHEDULES
from trainscout.simulators.predictor.question.validity import check_job, why_invalid
from trainscout.simulators.predictor.replay.memory_timeline import memory_timeline
from trainscout.simulators.predictor.replay.pass_timeline import passes_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program

EXAMPLE = Path(__file__).parents[4] / "examples" / "split_cooldown.csv"
TWO_RANKS = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
# Not those of which a file says too little: whether steps wait, and which way a micro-batch goes.
ONE_WAY = [
    (name, vpp)
    for name, kind in SCHEDULES.items()
    for vpp in ((2,) if kind.ends_meet else (1, 2))
    if not kind.both_ways and not kind.unsynchronised
]


def job_of(schedule: str, vpp: int, model=TINY, **recipe: object) -> Job:
    shape = {"pp": 4, "vpp": vpp, "schedule": schedule, "overlap_grad_reduce": True}
    layered = replace(model, num_layers=16)
    # Few enough micro-batches for all of them to be replayed under 1F1B, too.
    return make_job(layered, nodes=4, gpus_per_node=2, batch=16, **{**shape, **recipe})


def own(job: Job, path: str | Path) -> Job:
    return replace(job, recipe=replace(job.recipe, schedule=str(path)))


@pytest.mark.parametrize(("schedule", "vpp"), ONE_WAY)
@pytest.mark.parametrize("model", [TINY, MOE])
def test_a_built_in_schedule_as_a_file_takes_as_long_and_holds_as_much(
    schedule, vpp, model, tmp_path
):
    job = job_of(schedule, vpp, model)
    written = own(job, write_schedule(job, tmp_path / "own.csv"))
    check_job(written)
    built_in, from_file = (ReplaySimulator().without_error_bar(each) for each in (job, written))
    assert from_file.step_time_s == built_in.step_time_s
    assert from_file.breakdown_s == built_in.breakdown_s
    assert from_file.memory == built_in.memory


@pytest.mark.parametrize(("schedule", "vpp"), ONE_WAY)
def test_no_bound_exceeds_what_a_file_takes(schedule, vpp, tmp_path):
    job = job_of(schedule, vpp)
    written = own(job, write_schedule(job, tmp_path / "own.csv"))
    bounds = Bounds(lambda recipe: replace(written, recipe=recipe))(
        RecipeTable.of([written.recipe])
    )
    predicted = ReplaySimulator().without_error_bar(written)
    assert 0 < bounds.step_time_s[0] <= predicted.step_time_s
    assert 0 < bounds.memory_bytes[0] <= predicted.memory.peak_reserved_bytes


def test_the_example_is_shorter_than_1f1b_and_agrees_with_its_pictures():
    plain = make_job(replace(TINY, num_layers=16), nodes=4, gpus_per_node=2, batch=16, pp=4)
    job = own(plain, EXAMPLE)
    check_job(job)
    before, after = (ReplaySimulator().without_error_bar(each) for each in (plain, job))
    assert after.step_time_s < before.step_time_s
    passes = passes_of(step_program(job))
    assert passes.step_time_s == pytest.approx(after.step_time_s)
    held = memory_timeline(job, passes).allocated_bytes.max()
    assert held == after.memory.peak_allocated_bytes


def test_parts_may_lie_where_no_built_in_schedule_puts_them(tmp_path):
    """Down, and down again beginning at the last rank: transfers between neighbours alone."""
    path = tmp_path / "own.csv"
    path.write_text("0F0,1F0,1B0,0B0\n3F0,2F0,2B0,3B0\n")
    model = replace(TINY, num_layers=16)
    with pytest.raises(InputError, match="waits for what never ends"):
        own(make_job(model, nodes=2, batch=1, pp=2, vpp=2), path)
    path.write_text("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n")
    job = own(make_job(model, nodes=2, gpus_per_node=1, batch=1, pp=2, vpp=2), path)
    check_job(job)
    assert job.routes == (((0, 0), (0, 1), (1, 0), (1, 1)),)
    # One micro-batch crosses between ranks once forward and once back, as without virtual stages.
    plain = replace(job, recipe=replace(job.recipe, schedule="1f1b", vpp=1))
    found = [ReplaySimulator().without_error_bar(each).step_time_s for each in (job, plain)]
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_a_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(TWO_RANKS)
    first = Recipe(pp=2, schedule=str(path))
    assert first.schedule.startswith(f"{path}#")
    assert Recipe(pp=2, schedule=first.schedule) == first
    path.write_text("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")
    second = Recipe(pp=2, schedule=str(path))
    assert second != first
    job = make_job(replace(TINY, num_layers=16), nodes=2, gpus_per_node=1, batch=2, pp=2)
    first_s, second_s = (
        ReplaySimulator().without_error_bar(replace(job, recipe=each)).memory.peak_allocated_bytes
        for each in (first, second)
    )
    assert first_s < second_s


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        (" \n , \n", "is empty"),
        ("0F0" * 50_000, "cannot be read: field larger"),
        ("0F0,0B0\n,\n7000000000000F0\n", "nobody runs part 1"),
        ("0F0,0B0\n1F0,1X0\n", "1X0 is no pass"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0\n", "0SEND_F0 is no pass"),
        ("0F0,0B0\n1F0\n", "part 1 runs micro-batch 0 as F"),
        ("0F0,0B0\n1F0,1B0,1B0\n", "1B0 runs more than once"),
        ("0F0,0B0,0W0\n1F0,1B0\n", "part 0 runs micro-batch 0 as FBW"),
        ("0F0,0B0\n2F0,2B0\n", "nobody runs part 1"),
        ("0F0,0B0,1F0\n1F0,1B0\n", "part 1 is on rank 0 and on rank 1"),
        ("0F0,0B0\n1F0,1B0,2F0,2B0\n", "rank 1 has 2 parts"),
        ("0B0,0F0\n1F0,1B0\n", "0B0 on rank 0 waits for what never ends"),
        ("0F0,0W0,0I0\n1F0,1B0\n", "0W0 on rank 0 waits"),
        ("0F0,0B0\n2F0,2B0\n1F0,1B0\n3F0,3B0\n", "part 0 is on rank 0 and the next on rank 2"),
    ],
)
def test_what_is_no_schedule_is_refused(content, problem):
    with pytest.raises(InputError, match=problem):
        parse_schedule(content, "own.csv")


def test_a_file_that_a_spreadsheet_marks_is_read(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(TWO_RANKS, encoding="utf-8-sig")
    assert read_schedule(pinned(str(path))) == parse_schedule(TWO_RANKS, "own.csv")


def test_pauses_and_pairs_are_read():
    plain = parse_schedule(TWO_RANKS, "own.csv")
    assert parse_schedule("0F0,0F1,,0B0,0B1\n,1F0,1B0,(1F1;1B1)OVERLAP_F_B\n", "own.csv") == plain


@pytest.mark.parametrize(
    ("recipe", "batch", "field"),
    [
        ({"pp": 4}, 16, "pp"),
        ({"pp": 1}, 16, "pp"),
        ({"pp": 2, "vpp": 2}, 16, "vpp"),
        ({"pp": 2}, 16, "micro_batch"),
    ],
)
def test_another_pipeline_is_refused_by_field(recipe, batch, field, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(TWO_RANKS)
    job = own(make_job(replace(TINY, num_layers=16), nodes=4, batch=batch, **recipe), path)
    broken = why_invalid(job)
    assert broken is not None
    assert broken.field == field


def test_a_framework_without_files_refuses_them(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(TWO_RANKS)
    job = own(
        make_job(replace(TINY, num_layers=16), nodes=2, gpus_per_node=1, batch=2, pp=2), path
    )
    none = replace(job, framework=replace(job.framework, schedules=("1f1b", "gpipe")))
    with pytest.raises(InputError, match="loads no schedules from files"):
        check_job(none)
    with pytest.raises(InputError, match="cannot be read"):
        Recipe(schedule=str(tmp_path / "absent.csv"))


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ("0F0,0B0\n1F0,1B0\n", "1F1B"),
        ("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", "Interleaved1F1B"),
        ("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "ZBVZeroBubble"),
    ],
)
def test_torchtitan_is_launched_with_the_file_and_read_back(rows, name, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(rows)
    recipe = Recipe(pp=2, vpp=2 if "3F0" in rows else 1, zero_stage=1, schedule=str(path))
    job = Job(DENSE, GPU, CLUSTER, TRAINING, recipe, framework("torchtitan"))
    (launch,) = launches(job, "torchtitan")
    assert launch.impossible == ()
    assert f"schedule={name}" in launch.script_text.replace(" ", "=")
    script = tmp_path / launch.script
    script.write_text(launch.script_text)
    question = Question(DENSE, GPU, CLUSTER, TRAINING)
    found = read_launch(str(script), question, (), declared_model, framework)
    assert (found.recipe.schedule, found.recipe.vpp) == (recipe.schedule, recipe.vpp)


def test_what_is_written_is_what_pytorch_loads(tmp_path):
    """PyTorch's own reader finds the same passes in the same order."""
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import _Action

    job = job_of("zb-v", 2)
    path = write_schedule(job, tmp_path / "own.csv")
    read = parse_schedule(Path(path).read_text(), path)
    for row, order in zip(Path(path).read_text().splitlines(), read.orders, strict=True):
        theirs = [_Action.from_str(word) for word in row.split(",")]
        assert [each.microbatch_index for each in theirs] == [micro for _, _, micro in order]
        assert [each.computation_type.value for each in theirs] == [kind for kind, _, _ in order]
    assert np.array(read.orders[0]).shape[1] == 3
