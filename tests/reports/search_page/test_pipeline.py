from dataclasses import replace

import pytest

from tests.reports.search_page.searches import QUESTION, RECIPES, simulated
from trainscout.reports.search_page.page_data import pipeline_bars, shown_micro_batches
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import SimulatorSpec


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_number_of_micro_batches_that_can_be_scheduled_and_read(recipe):
    job = QUESTION.job(recipe)
    count = shown_micro_batches(job)
    assert 1 <= count <= job.num_micro_batches
    assert count % (recipe.pp if recipe.vpp > 1 else 1) == 0


def test_deep_pipelines_show_fewer_micro_batches():
    job = QUESTION.job(Recipe(pp=8))
    job = replace(job, training=replace(job.training, global_batch_size=4096))
    assert shown_micro_batches(job, most_bars=10_000) == 12
    assert shown_micro_batches(job, most_bars=100) == 6


def test_bars_end_with_the_step():
    job = QUESTION.job(Recipe(pp=4, micro_batch=2))
    bars = pipeline_bars(job, SimulatorSpec())
    ends = [start + length for start, length in zip(bars["start"], bars["length"], strict=True)]
    step_us = simulated(job.recipe).step_time_s * 1e6
    played = bars["micro_batches"] == job.num_micro_batches
    assert played == (max(ends) == pytest.approx(step_us, rel=1e-3))
    assert sorted(set(bars["stage"])) == [0, 1, 2, 3]
    forward = bars["kinds"].index("forward")
    assert bars["kind"].count(forward) == 4 * bars["micro_batches"]


def test_recomputation_is_part_of_a_backward_pass():
    bars = pipeline_bars(QUESTION.job(RECIPES[3]), SimulatorSpec())
    backward = bars["kinds"].index("backward")
    for kind, length, again in zip(bars["kind"], bars["length"], bars["recompute"], strict=True):
        assert (0 < again < length) if kind == backward else again == 0


def test_other_simulators_say_that_they_have_none():
    bars = pipeline_bars(QUESTION.job(Recipe()), SimulatorSpec("traced"))
    assert list(bars) == ["unavailable"]
    assert "traced" in bars["unavailable"]
