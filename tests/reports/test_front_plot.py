import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.samples import prediction, search_result, trial
from trainscout.optimizer.objective import MEASURES
from trainscout.reports.front_plot import _AXES, front_plot
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.question.recipe import Recipe


def searched(*steps_and_headrooms):
    """A search whose trials take so many seconds and leave so many GiB of 76."""
    trials = tuple(
        trial(
            number,
            Recipe(micro_batch=number + 1),
            "ok" if headroom >= 0 else "oom",
            prediction=prediction(step, headroom),
        )
        for number, (step, headroom) in enumerate(steps_and_headrooms)
    )
    best = tuple(
        sorted(
            (t for t in trials if t.status == "ok"), key=lambda each: each.prediction.step_time_s
        )
    )
    return search_result(trials=trials, best=best, pareto=best[:1])


# Fastest with the least room; a front of three; one beaten; one that does not fit.
FOUND = searched((1.0, 2.0), (1.1, 20.0), (1.3, 40.0), (1.2, 10.0), (0.9, -1.0))


def drawn(result, shown=None, encoding="utf-8", width=80):
    plot = front_plot(result, result.best if shown is None else shown)
    with io.TextIOWrapper(io.BytesIO(), encoding=encoding) as stream:
        Console(file=stream, width=width).print(plot)
        stream.seek(0)
        return stream.read()


def canvas(text):
    """The rows inside the axes."""
    return [line for line in text.splitlines() if "│" in line or "┤" in line]


def test_front_others_and_misses_have_marks_of_their_own():
    rows = "\n".join(canvas(drawn(FOUND, shown=[])))
    assert (rows.count("●"), rows.count("•"), rows.count("×")) == (3, 1, 1)


def test_the_front_is_named_by_rank():
    text = drawn(FOUND)
    for name in ("#1", "#2", "#4"):
        assert f"●{name}" in text or f"{name}●" in text
    assert "#3" not in text


def test_faster_is_lower_and_leaner_is_further_left():
    rows = canvas(drawn(FOUND))
    place = {
        name: (row, line.index(name))
        for row, line in enumerate(rows)
        for name in ("#1", "#4")
        if name in line
    }
    assert place["#1"][0] > place["#4"][0]
    assert place["#1"][1] > place["#4"][1]


def test_the_capacity_is_a_line_left_of_what_misses():
    text = drawn(FOUND)
    assert "76.0 GiB usable" in text
    for line in canvas(text):
        if "×" in line:
            assert line.index("┊") <= line.index("×")
        if "●" in line:
            assert line.index("●") < line.index("┊")


def test_far_outliers_are_counted_not_drawn():
    found = searched((1.0, 2.0), (1.1, 20.0), (9.0, 30.0), (1.0, -80.0))
    text = drawn(found, shown=found.best[:2])
    assert "2 lie outside" in text
    assert "×" not in "".join(canvas(text))
    assert "may not fit (1)" in text


def test_what_the_table_lists_is_never_outside():
    front = searched((1.0, 2.0), (1.1, 20.0), (9.0, 30.0), (9.5, 25.0))
    assert "#3" in drawn(front)
    assert "#3" not in drawn(front, shown=front.best[:2])


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp1252"])
def test_code_pages_without_these_marks_get_ascii(encoding):
    text = drawn(FOUND, encoding=encoding)
    assert text.isascii()
    assert "o#1" in text or "#1o" in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_asked(width):
    assert max(map(len, drawn(FOUND, width=width).splitlines())) <= width


def test_several_objectives_are_the_axes():
    pair = replace(FOUND, objectives=("cost", "mfu"), pareto=FOUND.best)
    text = as_text(front_plot(pair, FOUND.best))
    assert text.startswith("Cost of the run (k$) against MFU (%)")
    assert "usable" not in text
    swapped = replace(FOUND, objectives=("memory", "step_time"), pareto=FOUND.best)
    assert as_text(front_plot(swapped, FOUND.best)).startswith("Memory a GPU needs (GiB) against")


def test_a_front_of_more_objectives_than_axes_says_so():
    names = ("cost", "mfu", "memory")
    text = as_text(front_plot(replace(FOUND, objectives=names, pareto=FOUND.best), FOUND.best))
    assert "front of cost, mfu, memory" in text
    assert "in both" not in text


def test_every_measure_can_be_an_axis():
    assert set(_AXES) == set(MEASURES)
    assert {name: axis.minimise for name, axis in _AXES.items()} == {
        name: measure.minimise for name, measure in MEASURES.items()
    }


def test_equal_recipes_still_draw():
    same = searched(*[(1.0, 10.0)] * 4)
    assert "#1" in drawn(same)


def test_too_little_to_see():
    assert front_plot(searched((1.0, 2.0), (1.1, 20.0)), ()) is None
    assert front_plot(searched((1.0, -2.0), (1.1, -20.0), (1.2, -1.0)), ()) is None
