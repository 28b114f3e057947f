"""What known runs say of others, against closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from trainscout.simulators.predictor.uncertainty import posterior
from trainscout.simulators.predictor.uncertainty.factors import SHARES
from trainscout.simulators.predictor.uncertainty.posterior import (
    FREEDOM,
    NOISES,
    Columns,
    Posterior,
    Prior,
    Traits,
    published_prior,
)

ONE = Traits(
    gpu="h100", software="x", precision="bf16", experts=False, shape="1 x 2", recompute="none",
    zero_stage=0, num_gpus=8, sequence_length=2048, hidden_size=4096, micro_batch=1, tp=1, pp=1,
    ep=1,
)  # fmt: skip
OTHER = replace(ONE, gpu="b200", software="y", precision="fp8", shape="3 x 4", num_gpus=1 << 20)
NOTHING = (0.0,) * len(SHARES)
# Runs share one error of 10 %, and have one of 2.5 % each.
LEVEL = Prior(0.1, 0.0, 0.0, 0.0, 1.0, 0.0, 0.025, 0.01)


def columns(*traits, shares=NOTHING):
    return Columns.of(traits, [shares] * len(traits))


def test_a_shared_error_is_the_mean_shrunk_by_number_and_spread():
    known = columns(ONE, replace(ONE, tp=2), replace(ONE, tp=4))
    errors, other = np.array([0.1, 0.1, 0.1]), replace(OTHER, gpu=ONE.gpu, software=ONE.software)
    found = Posterior(known, errors, LEVEL).errors(columns(other))
    # Equal errors are as a normal error's would be but for weights above one: 3 runs at 0.025.
    assert 0.1 * 3 / (3 + 0.025**2 / 0.1**2) <= found[0] < 0.1
    few = Posterior(known.take(np.array([0])), errors[:1], LEVEL).errors(columns(other))
    assert few[0] < found[0]
    spread = Posterior(known, np.array([0.1, 0.3, -0.1]), replace(LEVEL, noise=0.2))
    assert spread.errors(columns(other))[0] < found[0]


@pytest.mark.parametrize("times", [0.5, 1.3, 2.0, 2.8])
def test_runs_that_agree_are_believed_however_far_off_they_are(times: float) -> None:
    known = columns(*(replace(ONE, tp=tp) for tp in (1, 2, 4)))
    errors = np.log(times) + np.array([0.01, -0.01, 0.0])
    found = Posterior(known, errors)
    assert found.errors(columns(replace(ONE, tp=8)))[0] == pytest.approx(np.log(times), rel=0.035)
    low, high = found.ends(columns(replace(ONE, tp=8)), 0.8)
    assert low[0] < np.log(times) < high[0] < low[0] + 0.15
    # Of another machine that says little.
    assert abs(found.errors(columns(OTHER))[0]) < 0.05


@pytest.mark.parametrize("apart", [0.04, 0.08, 0.12, 0.2, 0.3])
@pytest.mark.parametrize(
    "halves", [{"recompute": "full"}, {"precision": "fp8"}, {"num_gpus": 64}, {"gpu": "b200"}]
)
def test_halves_of_the_runs_that_differ_in_a_trait_are_no_outliers(apart, halves):
    known = [replace(ONE, micro_batch=m, **more) for more in ({}, halves) for m in (1, 2, 4)]
    errors = np.log([1 + apart] * 3 + [1 - apart] * 3)
    other = columns(replace(ONE, micro_batch=8), replace(ONE, micro_batch=8, **halves))
    found = Posterior(columns(*known), errors)
    assert found.errors(other) == pytest.approx(errors[[0, -1]], abs=0.5 * apart)
    low, high = found.ends(other, 0.8)
    assert (low < errors[[0, -1]]).all()
    assert (errors[[0, -1]] < high).all()


def test_one_wrong_run_does_not_decide():
    known = columns(*(replace(ONE, tp=tp) for tp in (1, 2, 4, 8)))
    right = Posterior(known, np.full(4, 0.05), LEVEL).errors(columns(ONE))[0]
    wrong = Posterior(known, np.array([0.05, 0.05, 0.05, 1.0]), LEVEL).errors(columns(ONE))[0]
    assert abs(wrong - right) < 0.1 * (1.0 - 0.05) / 4


def test_without_anything_alike_nothing_is_said_and_the_bar_is_the_prior():
    prior = replace(published_prior(), overall=0.0, part=0.0)
    far = replace(
        OTHER,
        experts=True,
        recompute="full",
        zero_stage=3,
        sequence_length=1 << 20,
        hidden_size=64,
    )
    found = Posterior(columns(ONE), np.array([0.2]), prior)
    assert abs(found.errors(columns(far))[0]) < 0.005
    weights = np.exp(found.known[2].log_weights)
    assert found.spreads(columns(far))[0] ** 2 == pytest.approx(
        weights @ posterior.variances(prior, columns(far))[:, 0], rel=0.05
    )


def test_quantiles_are_those_of_students_t():
    """With one noise only: two degrees are enough to tell them from a normal's."""
    from scipy.stats import t

    weights = np.where(NOISES == 0.05, 0.0, -np.inf)
    nothing = np.zeros((len(NOISES), 1))
    found = posterior.Conditioned(weights, nothing, nothing[..., None])
    at = posterior.quantile(found, nothing, nothing + 0.04, 0.9)
    assert at[0] == pytest.approx(0.2 * t(FREEDOM).ppf(0.9), rel=1e-6)


def test_more_runs_narrow_the_bar():
    known = columns(*(replace(ONE, tp=tp) for tp in (1, 2, 4, 8)))
    ends = [
        Posterior(known.take(np.arange(n)), np.full(n, 0.05)).ends(columns(ONE), 0.8)
        for n in (1, 2, 4)
    ]
    widths = [float(high[0] - low[0]) for low, high in ends]
    assert widths == sorted(widths, reverse=True)


def test_densities_integrate_to_one():
    grid = np.linspace(-4, 4, 8001)
    density = np.exp(posterior.log_density(grid, np.full(len(grid), 0.01)))
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-3)


def test_the_diagonal_of_what_is_unknown_is_its_spread():
    known = columns(*(replace(ONE, tp=tp) for tp in (1, 2, 4)))
    found = Posterior(known, np.array([0.05, 0.06, 0.02]))
    both = columns(ONE, OTHER)
    assert np.sqrt(np.diag(found.covariance(both))) == pytest.approx(found.spreads(both))
