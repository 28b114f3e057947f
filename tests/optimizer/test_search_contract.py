"""One suite over every sampler and every executor: what any search promises."""

import functools
import importlib.util
import itertools

import pytest

from tests.optimizer import toy_search
from tests.optimizer.fake_simulator import FAKE, SPACE, FakeSimulator, story, toy_question
from trainscout.optimizer.options import ExecutorOptions
from trainscout.optimizer.registry import SAMPLERS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.validity import why_invalid

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="GP needs the gp extra (torch)"
)
# Exact search needs bounds, which the fake simulator has not: test_exact.py has its promises.
ALL = [
    pytest.param(name, marks={"gp": needs_torch}.get(name, ()))
    for name in SAMPLERS
    if name != "exact"
]
# GP takes as long to converge as all others together.
CONVERGED = [
    pytest.param("gp", marks=[needs_torch, pytest.mark.deep]) if p.values == ("gp",) else p
    for p in ALL
]
TAKES_SEVERAL = [p for p in ALL if not SAMPLERS[p.values[0]].one_objective]


def search(sampler, **changes):
    return toy_search.search(sampler, **({"n_trials": 32} | changes))


@functools.cache
def searched(sampler):
    """The search that several tests look at."""
    return search(sampler)


@functools.cache
def converged(sampler):
    """A search until its best are stable; each trial of GP costs more than the one before, and
    more in large batches, since it imagines what the others will bring."""
    patience, batch_size = (6, 4) if sampler == "gp" else (12, 16)
    settings = {"n_trials": None, "min_trials": 24, "pruning": ()}
    return patience, search(sampler, patience=patience, batch_size=batch_size, **settings)


@pytest.fixture(scope="module")
def exhaustive():
    return search("grid", n_trials=None, pruning=())


@pytest.mark.parametrize("sampler", ALL)
class TestEverySampler:
    def test_considers_as_many_distinct_launchable_recipes_as_asked(self, sampler):
        result = searched(sampler)
        launchable = [t for t in result.trials if t.status != "invalid"]
        assert result.stopped == "n_trials"
        assert len(launchable) == len({t.recipe for t in launchable}) == 32
        assert all(why_invalid(toy_question().job(t.recipe)) is None for t in launchable)

    def test_what_it_reports_is_what_the_simulator_says(self, sampler):
        result = searched(sampler)
        simulator = FakeSimulator()
        for trial in result.trials:
            if trial.status in ("ok", "oom"):
                assert trial.prediction == simulator.simulate(toy_question().job(trial.recipe))
                assert trial.prediction.fits == (trial.status == "ok")
        ranked = sorted(t.values[0] for t in result.trials if t.status == "ok")
        assert [t.values[0] for t in result.best] == ranked[:10]
        assert result.pareto == result.best[:1]

    def test_invalid_points_carry_their_rule_and_appear_once(self, sampler):
        invalid = [t for t in searched(sampler).trials if t.status == "invalid"]
        points = [tuple(t.point.values()) for t in invalid]
        assert len(points) == len(set(points))
        assert all(t.rule and t.reason and t.prediction is None for t in invalid)

    def test_same_seed_same_answer(self, sampler):
        assert story(search(sampler)) == story(searched(sampler))

    def test_a_failing_simulator_costs_only_its_recipes(self, sampler):
        result = search(sampler, simulator=FAKE.replace("FakeSimulator", "SometimesFailing"))
        failed = [t for t in result.trials if t.status == "failed"]
        assert failed
        assert all(t.recipe.pp == 4 for t in failed)
        assert {t.reason for t in failed} == {"RuntimeError: no route for pp=4"}
        assert result.best

    def test_exhausts_a_space_whatever_it_proposes(self, sampler):
        fixed = {"recompute": ["none"], "zero_stage": [1], "tp": [1, 2], "vpp": [1]}
        small = {"knobs": {**SPACE["knobs"], **fixed}}
        result = search(sampler, space=small, n_trials=None, batch_size=32, pruning=())
        assert result.stopped == "space_exhausted"
        count = result.counts()
        assert count["ok"] + count["oom"] == len({t.recipe for t in result.trials}) - len(
            {t.recipe for t in result.trials if t.status == "invalid"}
        )


@pytest.mark.parametrize("sampler", CONVERGED)
def test_stops_when_the_best_are_stable(sampler):
    patience, result = converged(sampler)
    launchable = [t for t in result.trials if t.status != "invalid"]
    assert result.stopped == "converged"
    assert len(launchable) >= 24
    last = [t for t in launchable if t.status == "ok"][-patience:]
    top = {t.recipe for t in result.best[:5]}
    assert not top & {t.recipe for t in last}


@pytest.mark.parametrize(
    "sampler", [p for p in CONVERGED if p.values[0] not in ("random", "grid")]
)
def test_a_learning_sampler_finds_the_top_of_the_space(sampler, exhaustive):
    """Within 1 % of the true optimum from a fifth of the space; GP needs two thirds of that."""
    result = converged("gp")[1] if sampler == "gp" else search(sampler, n_trials=192)
    assert len(result.trials) <= 128 or sampler != "gp"
    assert result.best[0].values[0] <= exhaustive.best[0].values[0] * 1.01


@pytest.mark.parametrize("sampler", TAKES_SEVERAL)
def test_several_objectives_give_a_front(sampler):
    result = search(sampler, objective=("step_time", "memory"))
    fitting = [t.values for t in result.trials if t.status == "ok"]
    front = [t.values for t in result.pareto]
    assert len(front) > 1
    for values in fitting:
        assert any(all(a <= b for a, b in zip(kept, values, strict=True)) for kept in front)
    for one in front:
        assert not any(
            all(a <= b for a, b in zip(other, one, strict=True)) and other != one
            for other in fitting
        )


def test_grid_lists_every_distinct_point_once(exhaustive):
    points = [tuple(t.point.values()) for t in exhaustive.trials]
    assert len(points) == len(set(points)) == exhaustive.space_size


@pytest.mark.parametrize(
    ("sampler", "workers"),
    [
        ("tpe", 2),
        ("cmaes", 3),
        pytest.param("cmaes", 2, marks=pytest.mark.deep),
        pytest.param("grid", 3, marks=pytest.mark.deep),
    ],
)
def test_the_number_of_workers_does_not_change_the_answer(sampler, workers):
    alone = searched(sampler)
    together = search(sampler, executor=ExecutorOptions("loky", workers))
    assert story(alone) == story(together)
    assert alone.stopped == together.stopped


@pytest.mark.parametrize("sampler", ["cmaes", "cma"])
def test_cma_es_refuses_several_objectives(sampler):
    with pytest.raises(InputError, match="takes one objective"):
        search(sampler, objective=("step_time", "memory"))


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_gp_without_torch_says_how_to_install_it():
    with pytest.raises(InputError, match=r"pip install 'trainscout\[gp\]'"):
        search("gp")


@pytest.mark.parametrize(
    ("changes", "field", "nearest"),
    [
        ({"n_trials": 0}, "search.n_trials", None),
        ({"n_trials": -5}, "search.n_trials", None),
        ({"n_trials": float("nan")}, "search.n_trials", None),
        ({"n_trials": 2.5}, "search.n_trials", None),
        ({"batch_size": 0}, "search.batch_size", None),
        ({"patience": 0}, "search.patience", None),
        ({"timeout_s": float("inf")}, "search.timeout_s", None),
        ({"pruning": ("recompute",)}, "search.pruning", "recompute_oom"),
        ({"options": {"n_startup_trial": 3}}, "search.options", "n_startup_trials"),
        ({"simulator": "replai"}, "simulator.name", "replay"),
        ({"simulator": "no.such.module:Thing"}, "simulator.name", None),
        ({"seed": -1}, "seed", None),
        ({"executor": ExecutorOptions("lok")}, "executor.name", "loky"),
        ({"executor": ExecutorOptions("loky", 0)}, "executor.n_jobs", None),
    ],
)
def test_bad_settings_are_refused_by_name(changes, field, nearest):
    with pytest.raises(InputError) as refused:
        search("tpe", **changes)
    assert refused.value.field == field
    assert refused.value.nearest == nearest


def test_an_unknown_sampler_gets_the_nearest():
    with pytest.raises(InputError) as refused:
        search("cma-es")
    assert refused.value.nearest == "cmaes"


def test_progress_is_reported_after_every_batch():
    seen = []
    search("random", objective="mfu", n_trials=40, on_progress=seen.append)
    assert [p.considered for p in seen] == [16, 32, 40]
    assert {p.limit for p in seen} == {40}
    assert seen[-1].eta_s == 0
    assert sum(seen[-1].counts.values()) - seen[-1].counts["invalid"] == 40
    assert all(a.best.values <= b.best.values for a, b in itertools.pairwise(seen))


def test_ctrl_c_keeps_what_is_resolved():
    def interrupt(progress):
        if progress.considered >= 32:
            raise KeyboardInterrupt

    result = search("tpe", n_trials=400, on_progress=interrupt)
    assert result.stopped == "interrupted"
    assert len([t for t in result.trials if t.status != "invalid"]) == 32
    assert result.best


def test_a_timeout_ends_the_search():
    result = search("random", n_trials=None, timeout_s=1e-9)
    assert result.stopped == "timeout"
