"""The tree-structured Parzen estimator against what its mixtures are by definition."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.samplers.base import Evaluation
from trainscout.optimizer.samplers.tpe import TpeSampler, _best, _Mixture
from trainscout.simulators.predictor.question.errors import InputError

SIZES = [5, 2, 9, 1, 3]
EVERY = np.stack(np.meshgrid(*map(np.arange, SIZES)), axis=-1).reshape(-1, len(SIZES))


def sampler(seed=0, **options):
    knobs = [SimpleNamespace(choices=range(size)) for size in SIZES]
    return TpeSampler(
        SimpleNamespace(
            options=SearchOptions(**options), space=SimpleNamespace(knobs=knobs), seed=seed
        )
    )


def mixture(count):
    points = np.random.default_rng(count).integers(SIZES, size=(count, len(SIZES)))
    return _Mixture(points, SIZES)


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_densities_of_all_points_add_up_to_one(count):
    assert np.exp(mixture(count).log_density(EVERY)).sum() == pytest.approx(1.0)


def test_points_are_drawn_as_often_as_they_are_dense():
    of = mixture(12)
    drawn = of.draw(np.random.default_rng(0), 20_000)
    every, counts = np.unique(drawn[:, 2], return_counts=True)
    expected = np.zeros(SIZES[2])
    np.add.at(expected, EVERY[:, 2], np.exp(of.log_density(EVERY)))
    assert counts / len(drawn) == pytest.approx(expected[every], abs=0.015)


def test_a_density_is_highest_where_points_are():
    point = np.array([4, 1, 6, 0, 2])
    of = _Mixture(np.tile(point, (12, 1)), SIZES)
    assert (EVERY[np.argmax(of.log_density(EVERY))] == point).all()


def test_what_fits_is_better_than_what_misses_memory_and_that_by_how_much():
    losses = np.array([[3.0], [1.0], [2.0], [0.5]] + [[9.0]] * 26)
    missing = np.array([0.0, 0.2, 0.0, 0.1] + [0.3] * 26)
    assert np.flatnonzero(_best(losses, missing)).tolist() == [0, 2, 3]


def test_of_several_objectives_what_few_dominate_is_best():
    losses = np.array([[float(i), 19.0 - i] for i in range(3)] + [[20.0, 20.0]] * 20)
    assert np.flatnonzero(_best(losses, np.zeros(23))).tolist() == [0, 1, 2]


def test_it_comes_close_to_an_optimum_far_sooner_than_by_chance():
    searching, target = sampler(n_trials=240), np.array([1, 0, 6, 0, 2])
    losses = []
    for _ in range(15):
        asked = [searching.ask() for _ in range(16)]
        for proposal in asked:
            loss = float(np.abs(np.array(proposal.indices) - target).sum())
            losses.append(loss)
            searching.tell(proposal, Evaluation((loss,)))
    assert min(losses) == 0.0
    # Chance comes to 5.5 on average.
    assert np.mean(losses[-64:]) < 3.0


def test_the_same_seed_asks_for_the_same():
    def asked(seed):
        searching = sampler(seed, options={"n_startup_trials": 4})
        found = []
        for _ in range(12):
            proposal = searching.ask()
            found.append(proposal.indices)
            searching.tell(proposal, Evaluation((float(sum(proposal.indices)),)))
        return found

    assert asked(3) == asked(3) != asked(4)


@pytest.mark.parametrize("options", [{"gamma": 0.1}, {"n_ei_candidates": 0}])
def test_wrong_options_are_refused(options):
    with pytest.raises(InputError):
        sampler(options=options)
