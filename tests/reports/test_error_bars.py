from dataclasses import replace

import pytest

from tests.samples import job_of, prediction, trial
from trainscout.reports.error_bars import (
    format_distinguishable,
    format_error_bar,
    lead_share,
    tie_shares,
)
from trainscout.simulators.predictor.question.recipe import Recipe

BAR = (1.9, 2.1)


def ranked(*steps_s, bar=BAR):
    """Recipes of growing tp with these step times, best first."""
    return [
        trial(
            rank,
            Recipe(tp=2**rank),
            prediction=replace(prediction(step_s), interval_s=bar),
        )
        for rank, step_s in enumerate(steps_s)
    ]


def test_an_error_bar_is_shown_in_seconds_and_relative():
    words = format_error_bar(replace(prediction(2.0), interval_s=(1.9, 2.2)))
    assert words.startswith("1.900 s to 2.200 s (-5.0% to +10.0%), where 80% of")


@pytest.mark.parametrize(("bar", "said"), [((2.1, 2.4), "too short"), ((1.5, 1.9), "too long")])
def test_a_bar_beside_the_prediction_says_why(bar, said):
    assert said in format_error_bar(replace(prediction(2.0), interval_s=bar))


def test_a_simulator_without_error_bars_says_so():
    assert format_error_bar(prediction()).startswith("none")


def test_the_lead_is_relative_to_the_shorter_step():
    assert lead_share(prediction(2.0), prediction(2.5)) == pytest.approx(0.25)
    assert lead_share(prediction(2.5), prediction(2.0)) == pytest.approx(0.25)


def test_equal_predictions_cannot_be_told_apart_and_far_ones_can():
    shares = tie_shares(ranked(2.0, 2.0, 9.0), job_of)
    assert shares[0] == 0
    assert 0 < shares[1] < shares[2] < 3.5
    words = format_distinguishable(ranked(2.0, 2.0, 9.0), job_of)
    assert words.startswith("#2 cannot be distinguished from #1")
    assert f"{shares[1] * 100:.1f} %" in words
    assert "#3" not in words


def test_a_clear_winner_is_called_one():
    assert format_distinguishable(ranked(2.0, 9.0), job_of).startswith("every other recipe shown")


def test_nothing_is_said_without_rivals_or_error_bars():
    assert format_distinguishable(ranked(2.0), job_of) is None
    assert format_distinguishable(ranked(2.0, 2.1, bar=None), job_of) is None
    assert tie_shares(ranked(2.0, 2.1, bar=None), job_of) == [None, None]
    assert tie_shares([], job_of) == []
