from dataclasses import replace

import pytest

from tests.reports.search_page.searches import searched
from tests.samples import job_of, prediction, trial
from trainscout.reports.error_bars import (
    format_distinguishable,
    lead_share,
    tie_shares,
)
from trainscout.reports.search_page.page_data import page_record
from trainscout.reports.terminal_tables import search_report
from trainscout.reports.tracker_runs import NOTE, search_record
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_error_bar, format_seconds
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.question.recipe import Recipe

BAR = (1.9, 2.1)


def ranked(*steps_s, bar=BAR):
    """Recipes of growing tp with these step times, best first."""
    return [
        trial(
            rank,
            Recipe(tp=2**rank),
            prediction=replace(prediction(step_s, bubble=0.1 * rank * step_s), interval_s=bar),
        )
        for rank, step_s in enumerate(steps_s)
    ]


def test_an_error_bar_is_shown_in_seconds_and_relative():
    words = format_error_bar(replace(prediction(2.0), interval_s=(1.9, 2.2)))
    assert words.startswith("1.900 s to 2.200 s (-5.0% to +10.0%), where 80% of")


@pytest.mark.parametrize(("bar", "stated"), [((2.1, 2.4), "too short"), ((1.5, 1.9), "too long")])
def test_a_bar_beside_the_prediction_says_why(bar, stated):
    assert stated in format_error_bar(replace(prediction(2.0), interval_s=bar))


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


def test_the_answer_has_one_bar_wherever_it_is_shown(tmp_path):
    search = searched()
    result, job_of = search.result, search.question.job
    bar = predicted(result.best[0]).interval_s
    low, high = map(format_seconds, bar)

    page = page_record(search)
    first = page["recipes"][0]
    assert (first["low_s"], first["high_s"]) == bar
    ends = next(row for row in page["sensitivity"]["rows"] if "error bar" in row["name"])["ends"]
    assert sorted(end["step_time_s"] for end in ends) == pytest.approx(bar)
    tracked = search_record(
        result, search.question, settings={}, group="", directory=tmp_path, files=[]
    )
    metrics = tracked.children[0].metrics
    assert (metrics["step_time_low_s"], metrics["step_time_high_s"]) == bar
    reports = (
        as_text(search_report(result, job_of, None, verbosity=verbosity))
        for verbosity in ("quiet", "normal", "verbose")
    )
    for text in (page["error_bar"], tracked.parent.tags[NOTE], *reports):
        assert f"{low} to {high}" in text
