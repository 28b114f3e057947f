"""Predictions without interference: really without, and only while asked."""

from __future__ import annotations

from benchmarks.overlap_effect import without_interference
from benchmarks.question import job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator


def test_interference_is_out_inside_and_back_after() -> None:
    recipe = Recipe(zero_stage=3, recompute="full")
    question = job(recipe, "model=llama2_7b", "cluster=a100_256")
    simulator = ReplaySimulator()
    before = simulator.simulate(question)
    with without_interference():
        ideal = simulator.simulate(question)
    after = simulator.simulate(question)
    assert ideal.breakdown_s.get("overlap_slowdown", 0.0) == 0
    assert before.breakdown_s["overlap_slowdown"] > 0
    assert ideal.step_time_s < before.step_time_s == after.step_time_s
