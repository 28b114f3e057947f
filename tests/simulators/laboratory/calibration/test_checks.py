import re
from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.jobs import make_job
from trainscout.simulators.laboratory.calibration.runs import check_runs
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import CalibrationRun
from trainscout.simulators.predictor.uncertainty.posterior import traits_of

RUN = CalibrationRun("a", traits_of(make_job()), (0.0,) * 5, 2.0, 2.0)


def runs(*ratios):
    return [replace(RUN, name=f"r{n}", measured_s=2.0 * each) for n, each in enumerate(ratios)]


@pytest.mark.parametrize(
    ("ratio", "stated"),
    [
        (1000, "milliseconds taken for seconds"),
        (1e-3, "seconds taken for mill"),
        (5, "5.24 times"),
    ],
)
def test_another_unit_is_refused_by_its_name(ratio, stated):
    with pytest.raises(InputError, match=re.escape(stated)):
        check_runs(runs(ratio, 1.1 * ratio), np.arange(2))


def test_one_run_far_from_the_others_is_left_out():
    assert check_runs(runs(1, 1.1, 100, 0.9), np.arange(4)) == (0, 1, 3)


def test_runs_of_one_job_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match=r"r0 and r2.*of one job and differ 100 times"):
        check_runs(runs(1, 1, 100, 1), np.array([0, 1, 0, 2]))
