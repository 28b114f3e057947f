"""How much of what runs say is applied, against what it promises."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.test_posterior import (
    LEVEL,
    NOTHING,
    ONE,
    OTHER,
    columns,
)
from trainscout.simulators.predictor.uncertainty import posterior
from trainscout.simulators.predictor.uncertainty.applied import (
    applied,
    part_logs,
    scale_logs,
    weight,
)
from trainscout.simulators.predictor.uncertainty.factors import SHARES
from trainscout.simulators.predictor.uncertainty.posterior import (
    Columns,
    Posterior,
    Prior,
    published_prior,
)


@pytest.mark.parametrize("spread", [0.1, 0.6, 1.0, 1.15])
def test_what_is_applied_makes_it_worse_in_one_case_of_five_at_most(spread):
    (share,) = weight(np.array([1.0]), np.array([spread**2]))
    true = 1.0 + spread * np.random.default_rng(0).standard_normal(200_000)
    worse = np.mean(np.abs(true - share) > np.abs(true))
    assert 0 < share <= 1
    assert worse <= 0.203
    # It is all, or as much as that allows.
    assert share == 1 or worse >= 0.197


def test_where_chance_may_be_all_nothing_is_applied():
    assert weight(np.array([0.0, 1e-9, 0.1]), np.array([0.0, 0.0, 0.0144])).tolist() == [0, 0, 0]


def test_a_part_is_told_from_the_whole():
    """Steps without network as predicted, with half of it longer: the network is."""
    prior = replace(LEVEL, part=0.5)
    shares = [NOTHING, NOTHING, (0, 0, 0.5, 0, 0), (0, 0, 0.5, 0, 0)]
    known = Columns.of([ONE] * 4, shares)
    found = Posterior(known, np.array([0.0, 0.0, 0.1, 0.1]), prior)
    network = SHARES.index("network_time")
    parts = part_logs(*found.known)
    assert parts[network] == pytest.approx(0.2, rel=0.1)
    assert np.delete(parts, network) == pytest.approx(0)
    assert abs(scale_logs(*found.known, columns(ONE))[0]) < 0.01
    assert found.part_spreads[network] < 0.1 < 0.5
    both = applied(*found.known, Columns.of([ONE] * 2, shares[1:3]))
    assert both == pytest.approx([0.0, 0.1], abs=0.02)


def test_runs_that_contradict_each_other_say_nothing_of_others():
    # Near the published one, which moves whenever runs or predictions do.
    prior = Prior(
        overall=0.0075, kind=0.004, part=0.23, smooth=0.044, length=3.1, distance=1.1,
        noise=0.018, noise_spread=0.77,
    )  # fmt: skip
    known = columns(*(replace(ONE, tp=tp) for tp in (1, 2, 4)))
    alike = Posterior(known, np.array([0.15, 0.16, 0.14]), prior)
    apart = Posterior(known, np.array([0.15, -0.16, 0.03]), prior)
    job = columns(replace(ONE, tp=8))
    assert applied(*alike.known, job)[0] > 0.1
    assert applied(*apart.known, job)[0] == 0
    # Far from the runs nothing is applied of what is still expected there.
    far = columns(replace(OTHER, experts=True, tp=1024))
    assert alike.errors(far)[0] > 0
    assert applied(*alike.known, far)[0] == 0


def test_many_sets_of_runs_at_once_are_as_one_by_one():
    prior, errors = published_prior(), np.array([[0.1, 0.12], [0.02, -0.03]])
    sets = [columns(ONE, replace(ONE, tp=2)), columns(OTHER, replace(OTHER, pp=2))]
    job = columns(ONE, replace(ONE, pp=4), shares=(0.1, 0.2, 0.1, 0, 0))
    single = [
        applied(*Posterior(known, own, prior).known, job)
        for known, own in zip(sets, errors, strict=True)
    ]
    both = Columns(*(np.stack(each) for each in zip(*map(_fields, sets), strict=True)))
    found = posterior.condition(
        prior, posterior.covariances(prior, posterior.compare(both, both)), errors
    )
    jobs = Columns(*(np.stack([each, each]) for each in _fields(job)))
    assert applied(prior, both, found, jobs) == pytest.approx(np.array(single))


def _fields(of):
    return of.kinds, of.sizes, of.shares
