"""One contract over all executors."""

import pytest

from optimizer.executor import make_executor
from optimizer.options import ExecutorOptions
from simulators.job import Recipe
from tests.optimizer.fake_simulator import FAKE, FakeSimulator, declared

EXECUTORS = [ExecutorOptions("serial", 1), ExecutorOptions("loky", 2)]
RECIPES = [
    Recipe(tp=tp, pp=pp, micro_batch=micro_batch)
    for tp in (1, 2, 4)
    for pp in (1, 2, 4)
    for micro_batch in (1, 2)
]


@pytest.mark.parametrize("options", EXECUTORS, ids=lambda options: options.name)
class TestEveryExecutor:
    def test_outcomes_come_in_the_order_of_the_recipes(self, options):
        simulator = FakeSimulator()
        with make_executor(options, declared(), FAKE) as executor:
            for recipes in (RECIPES, RECIPES[::-1], RECIPES[:1], []):
                outcomes = executor.map(recipes)
                assert [o.prediction for o in outcomes] == [
                    simulator.simulate(declared().job(recipe)) for recipe in recipes
                ]
                assert all(o.error is None and o.duration_s > 0 for o in outcomes)

    def test_an_exception_is_an_outcome(self, options):
        failing = FAKE.replace("FakeSimulator", "SometimesFailing")
        with make_executor(options, declared(), failing) as executor:
            for recipe, outcome in zip(RECIPES, executor.map(RECIPES), strict=True):
                failed = recipe.pp == 4
                assert (outcome.prediction is None) == failed
                assert outcome.error == ("RuntimeError: no route for pp=4" if failed else None)


def test_a_dying_worker_costs_only_the_recipe_that_killed_it():
    deadly = FAKE.replace("FakeSimulator", "KillsItsWorker")
    with make_executor(ExecutorOptions("loky", 2), declared(), deadly) as executor:
        outcomes = executor.map(RECIPES)
    for recipe, outcome in zip(RECIPES, outcomes, strict=True):
        killer = (recipe.tp, recipe.pp, recipe.micro_batch) == (4, 2, 2)
        assert (outcome.prediction is None) == killer
        assert ("worker process died" in (outcome.error or "")) == killer
