import io

from rich.console import Console

from tests.samples import job_of, search_result
from trainscout.optimizer.trial import Progress
from trainscout.reports.progress import LiveBar, LogLines, format_best, progress_view
from trainscout.simulators.predictor.io.terminal import console_for

COUNTS = {"ok": 3, "oom": 1, "pruned": 0, "invalid": 0, "failed": 0}


def progress(best=None) -> Progress:
    return Progress(4, 10, COUNTS, best, elapsed_s=2.0, eta_s=3.0)


def test_a_log_gets_plain_lines_now_and_then():
    stream = io.StringIO()
    with progress_view(console_for(stream), job_of) as view:
        assert isinstance(view, LogLines)
        view.show(progress())
        view.show(progress())  # too soon after the first
    assert stream.getvalue() == "4/10 recipes, 2 s, about 3 s left: none known to fit yet\n"


def test_a_count_without_an_end_stands_alone():
    stream = io.StringIO()
    with progress_view(console_for(stream), job_of) as view:
        view.show(Progress(7, None, {}, None, 2.0, None, counted="passes sampled"))
    assert stream.getvalue() == "7 passes sampled, 2 s: none known to fit yet\n"


def test_quiet_shows_nothing_and_verbose_every_batch():
    for verbosity, lines in (("quiet", 0), ("verbose", 2)):
        stream = io.StringIO()
        with progress_view(console_for(stream), job_of, verbosity) as view:
            view.show(progress())
            view.show(progress())
        assert len(stream.getvalue().splitlines()) == lines


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    with progress_view(console, job_of) as view:
        assert isinstance(view, LiveBar)
        view.show(progress(search_result().best[0]))
    assert "4/10 recipes, 0:00:00 elapsed, about 3 s left" in stream.getvalue()
    assert "best 2.000 s" in stream.getvalue()


def test_the_best_so_far_in_a_few_words():
    words = format_best(progress(search_result().best[0]), job_of)
    assert words == "best 2.000 s, MFU 50.0 %, tp4 pp2 dp2 mb1 sp zero1"
