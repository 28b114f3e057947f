"""The best recipes of a search, looked at again by a promotion simulator."""

from dataclasses import replace

import pytest

from tests.optimizer import toy_search
from tests.optimizer.fake_simulator import FakeSimulator
from trainscout.simulators.predictor.question.errors import InputError

HERE = "tests.optimizer.test_promotion"


class Reversed(FakeSimulator):
    """Finds the slower recipes faster."""

    def simulate(self, job):
        coarse = super().simulate(job)
        return replace(coarse, step_time_s=1.0 / coarse.step_time_s)


class NothingFits(FakeSimulator):
    def simulate(self, job):
        return replace(super().simulate(job), fits=False)


class Broken(FakeSimulator):
    def simulate(self, job):
        if job.recipe.sp:
            raise RuntimeError("no sequence parallelism here")
        return super().simulate(job)


def search(promote_to, objective="step_time"):
    settings = {"n_trials": 40, "batch_size": 32, "top_k": 6}
    return toy_search.search("random", objective=objective, promote_to=promote_to, **settings)


def test_the_promotion_simulator_ranks_the_best_anew():
    coarse = search(None)
    fine = search(f"{HERE}:Reversed")
    assert [t.recipe for t in fine.best] == [t.recipe for t in reversed(coarse.best)]
    assert [t.searched_values for t in reversed(fine.best)] == [t.values for t in coarse.best]
    assert fine.best[0].values[0] == pytest.approx(1 / fine.best[0].searched_values[0])
    assert fine.pareto == fine.best[:1]
    assert [t.values for t in fine.trials] == [t.values for t in coarse.trials]
    assert "simulated again" in fine.notes[-1]
    assert fine.choices.layouts[0] is fine.best[0]
    assert all(each.searched_values for each in fine.choices.layouts)


def test_a_front_is_promoted_as_a_whole():
    fine = search(f"{HERE}:Reversed", ("step_time", "memory"))
    assert fine.pareto
    assert all(trial.searched_values for trial in fine.pareto)


def test_where_none_fits_the_search_stands_and_the_note_says_so():
    fine = search(f"{HERE}:NothingFits")
    assert [t.values for t in fine.best] == [t.values for t in search(None).best]
    assert "6 of them do not fit there" in fine.notes[-1]


def test_recipes_that_fail_there_are_left_out_and_counted():
    fine = search(f"{HERE}:Broken")
    coarse = search(None)
    assert [t.recipe for t in fine.best] == [t.recipe for t in coarse.best if not t.recipe.sp]
    assert "no sequence parallelism here" in fine.notes[-1]


def test_an_unknown_simulator_is_refused_before_the_search():
    with pytest.raises(InputError, match=r"search\.promote_to=replai") as refused:
        search("replai")
    assert refused.value.nearest == "replay"
