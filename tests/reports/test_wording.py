import pytest

from trainscout.reports.wording import format_ranks


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([2], "#2"), ([2, 3, 4], "#2 to #4"), ([2, 3, 5, 7, 8], "#2 to #3, #5, #7 to #8")],
)
def test_ranks_are_run_together(ranks, words):
    assert format_ranks(ranks) == words
