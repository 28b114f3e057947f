"""What calibrating is worth, on publications that are made up."""

from dataclasses import astuple, replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.simulators.jobs import make_job
from trainscout.simulators.laboratory.calibration import evidence
from trainscout.simulators.laboratory.calibration.evidence import Published, common, regrets, tried
from trainscout.simulators.laboratory.calibration.evidence_command import page
from trainscout.simulators.predictor.uncertainty.factors import SHARES
from trainscout.simulators.predictor.uncertainty.posterior import (
    KINDS,
    Columns,
    Prior,
    log_density,
    published_prior,
    traits_of,
)

RUNS = 16


def made(seed):
    """Sixteen layouts each: one publication is 15 % slower, one scatters around predictions."""
    rng = np.random.default_rng(seed)
    traits = [
        replace(traits_of(make_job()), tp=2 ** (n % 4), micro_batch=2 ** (n // 4))
        for n in range(RUNS)
    ]
    errors = np.concatenate(
        [0.15 + 0.01 * rng.standard_normal(RUNS), 0.05 * rng.standard_normal(RUNS)]
    )
    sources = np.repeat(["slower", "scatters"], RUNS)
    predicted = np.log(1 + 0.02 * np.tile(np.arange(RUNS), 2))
    columns = Columns.of(traits * 2, [(0.0,) * len(SHARES)] * 2 * RUNS)
    measured = predicted + errors
    return Published(columns, errors, sources, sources, measured, np.full(2 * RUNS, 0.4))


@pytest.fixture(scope="module")
def published():
    return made(0)


def of(published, source, known, monkeypatch):
    monkeypatch.setattr(evidence, "DRAWS", 10)
    return tried(published, source, published.groups()[source], known, published_prior())


def test_a_slower_machine_is_corrected_and_its_bar_narrows(published, monkeypatch):
    found = of(published, "slower", 5, monkeypatch)
    assert found.before.median == pytest.approx(0.14, abs=0.01)
    assert found.after.median < 0.03
    assert found.applied == 1
    assert found.coverage > 0.75
    assert found.width < found.width_before / 2
    assert found.after.ranked == pytest.approx(found.before.ranked, abs=0.1)


def test_scatter_is_mostly_left_alone(monkeypatch):
    # Of one publication, draws share its largest errors: however many there are, its 90th
    # percentile may rise by a quarter or not at all. What is meant is what happens on average.
    found = [of(made(seed), "scatters", 5, monkeypatch) for seed in range(12)]
    assert np.mean([each.applied for each in found]) < 0.5
    assert np.mean([each.after.p90 / each.before.p90 for each in found]) < 1.1


def test_one_run_speaks_for_nothing_and_too_few_are_not_tried(published, monkeypatch):
    alone = of(published, "slower", 1, monkeypatch)
    assert alone.applied == 0
    assert alone.after == alone.before
    assert of(published, "slower", RUNS - 2, monkeypatch) is None


def test_a_prior_is_judged_by_how_probable_it_makes_the_others(published, monkeypatch):
    """Of each prior, also where what was worked out for another one is taken."""
    judge = {}

    def minimize(loss, start, **_):
        judge["loss"] = loss
        return SimpleNamespace(x=start)

    monkeypatch.setattr("scipy.optimize.minimize", minimize)
    groups = list(published.groups().values())
    start = np.log(astuple(evidence.fit_prior(published.runs, published.errors, groups)))
    for moved in np.vstack([np.zeros(8), np.eye(8)]):
        prior, logs = Prior(*np.exp(start + moved)), []
        for draw in evidence.drawn(groups):
            known, means, variances = evidence.conditioned(
                prior, published.runs, published.errors, draw.known, draw.others
            )
            own = log_density(published.errors[draw.others][:, None] - means, variances)
            logs += [*np.logaddexp.reduce(own + known.log_weights[..., None], 1).mean(axis=1)]
        expected = evidence._PULL * moved.sum() - np.mean(logs)
        assert judge["loss"](start + moved) == pytest.approx(expected, rel=1e-9)


def test_setups_are_runs_of_one_gpu_software_and_model(published):
    rows = published.groups()["slower"]
    ((name, own),) = published.own(rows).items()
    assert own.tolist() == rows.tolist()
    assert name.startswith("h100, ")
    kinds = published.runs.kinds.copy()
    kinds[rows[: RUNS // 2 + 1], KINDS.index("gpu")] = "another"
    mixed = replace(published, runs=replace(published.runs, kinds=kinds))
    # Of the seven that are left too few are alike.
    assert [len(own) for own in mixed.own(rows).values()] == [RUNS // 2 + 1]


def test_the_page_has_every_publication_and_sweep(published, monkeypatch):
    found = [of(published, name, 3, monkeypatch) for name in ("scatters", "slower")]
    found.append(replace(found[1], setup="h100, core, 96 x 12288"))
    every = [replace(each, known=known) for known in evidence.KNOWN for each in found]
    text = page(every, regrets(published, published_prior()), common(published))
    for words in (
        "| slower | 16 |",
        "| scatters | 16 |",
        "## Publications, 3 runs known",
        "| mean |  |",
        "of 2 setups",
    ):
        assert words in text


def test_a_common_factor_that_is_known_takes_the_median_error_off(published):
    (_, _), (before, after) = np.array(
        [(each.median, each.p90) for each in common(published)]
    ).reshape(2, 2, 2)
    assert before == pytest.approx([0.14, 0.15], abs=0.01)
    assert after.max() < 0.03
