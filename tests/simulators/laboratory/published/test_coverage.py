from dataclasses import replace

import pytest

from tests.samples import job_of, prediction
from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.laboratory.published.report import coverage_of
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.table import published_residuals


def result(name, measured_s, interval_s=(1.0, 3.0)):
    row = Row(id=name, gpu="h100")
    predicted = replace(prediction(2.0), interval_s=interval_s)
    return Result(row, job_of(Recipe()), predicted, measured_s, None, (), "")


def test_shares_are_of_the_runs_with_both():
    results = [
        result("a", 1.0),
        result("b", 3.5),
        result("c", 2.0),
        result("d", None),
        result("e", 2.0, None),
    ]
    found = coverage_of(results)
    assert (found["n"], found["n_unseen"]) == (3, 3)
    assert found["inside"] == found["inside_unseen"] == pytest.approx(2 / 3)


def test_runs_that_the_error_bars_were_made_from_are_told_apart():
    known = sorted(published_residuals().ids)[0]
    found = coverage_of([result(known, 2.0), result("mine", 9.0)])
    assert (found["n"], found["inside"]) == (2, 0.5)
    assert (found["n_unseen"], found["inside_unseen"]) == (1, 0.0)


def test_without_runs_there_is_no_share():
    assert coverage_of([])["inside"] is None
