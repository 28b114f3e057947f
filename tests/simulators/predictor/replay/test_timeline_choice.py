"""Which ranks a timeline shows."""

from __future__ import annotations

import pytest

from tests.samples import CLUSTER, GPU, MODEL
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.replay.timeline_choice import shown_ranks

JOB = Job(MODEL, GPU, CLUSTER, Training(64, 1e9), Recipe(tp=2, pp=4))


def test_one_rank_stands_for_each_stage() -> None:
    assert shown_ranks(JOB, None, None) == (0, 4, 8, 12)
    assert shown_ranks(JOB, (3, 0, 3), None) == (0, 12)


def test_ranks_are_shown_in_order_each_once() -> None:
    assert shown_ranks(JOB, None, [5, 1, 5]) == (1, 5)
    assert shown_ranks(JOB, None, 7) == (7,)
    assert shown_ranks(JOB, None, "all") == tuple(range(16))


@pytest.mark.parametrize(
    ("stages", "ranks", "message"),
    [
        ((4,), None, r"timeline\.stages=4: is no stage of the job .*0 to 3"),
        ((-1,), None, r"timeline\.stages=-1"),
        ((), None, r"timeline\.stages=.*names no stage"),
        (None, [16], r"timeline\.ranks=16: is no rank of the job .*0 to 15"),
        (None, -1, r"timeline\.ranks=-1"),
        (None, [], r"timeline\.ranks=\[\]: names no rank"),
        (None, "every", r"timeline\.ranks=every: is not a rank's number"),
        (None, [True], r"timeline\.ranks=True"),
        ((0,), [0], r"timeline\.ranks=\[0\]: is not for use with timeline\.stages"),
    ],
)
def test_refuses_what_the_job_does_not_have(
    stages: tuple[int, ...] | None, ranks: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        shown_ranks(JOB, stages, ranks)
