"""Runs read after the model was made, on the accuracy page."""

from __future__ import annotations

import csv
import math
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from trainscout.simulators.laboratory.published.page.later import (
    Blind,
    blind_summary,
    blind_tests_page,
    read_blind,
)
from trainscout.simulators.laboratory.published.published import (
    BLIND_TESTS,
    PUBLISHED_RUNS,
    BlindTest,
)
from trainscout.simulators.laboratory.published.reading.groups import source_group
from trainscout.simulators.laboratory.published.reading.rows import Row, read_rows
from trainscout.simulators.predictor.uncertainty.table import RESIDUALS

_TEST = BlindTest("A test", Path("runs.csv"), Path("first.csv"), "1.5", "Drawn by lot.")


def _run(identity: str, group: str, measured: float, now: float) -> dict[str, Any]:
    return {
        "id": identity,
        "group": group,
        "counted": True,
        "measured": measured,
        "num_gpus": 8,
        "predicted": now,
        "interval_s": (now * 0.9, now * 1.1),
    }


def test_blind_and_present_figures_stand_side_by_side() -> None:
    runs = [_run("a", "Theirs", 10.0, 10.5), _run("b", "Ours", 10.0, 8.0)]
    blind = {"a": Blind(True, (12.0, 9.0, 15.0)), "b": Blind(False, (5.0, 4.0, 6.0))}

    text = blind_tests_page([(_TEST, {"rows": runs}, blind)])

    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if "|" in line}
    assert "20.0% | 20.0% | +20.0% | 100% | 5.0% | 5.0% | +5.0% |" in (lines["**kept apart**"])
    assert "-50.0% | 0% | 20.0%" in lines["Ours"]
    assert lines["**all**"].startswith("| **all** | 2 | 35.0% |")


def test_a_run_that_was_refused_first_has_a_present_figure_only() -> None:
    runs = [_run("a", "Theirs", 10.0, 11.0)]

    text = blind_tests_page([(_TEST, {"rows": runs}, {"a": Blind(True, None)})])

    assert "| Theirs | 1 | - | - | - | - | 10.0% |" in text


@pytest.mark.parametrize("rows", [[], [_run("unknown", "Theirs", 1.0, 1.0)]])
def test_without_blind_runs_there_is_no_table(rows: list[dict[str, Any]]) -> None:
    tests = [(_TEST, {"rows": rows}, {"a": Blind(True, (1.0, 0.5, 2.0))})]
    assert blind_summary(tests) == ""
    assert "A test" not in blind_tests_page(tests)


def test_one_table_sums_up_all_tests_and_sizes() -> None:
    first = (_TEST, {"rows": [_run("a", "Theirs", 10.0, 11.0)]}, {"a": Blind(True, (12, 9, 11))})
    large = {**_run("b", "Ours", 10.0, 7.0), "num_gpus": 512}
    other = BlindTest("Another", Path("runs_2.csv"), Path("second.csv"), "2", "")
    second = (other, {"rows": [large]}, {"b": Blind(False, (6, 8, 11))})

    lines = {
        line.split("|")[1].strip(): line for line in blind_summary([first, second]).split("\n")
    }

    assert lines["A test"].startswith("| A test | 1 | 20.0% | 20.0% | +20.0% | 100% | 10.0%")
    assert lines["**all**"].startswith("| **all** | 2 | 30.0% |")
    assert lines["2-8 GPUs"].startswith("| 2-8 GPUs | 1 | 20.0% |")
    assert lines["more than 64 GPUs"].startswith("| more than 64 GPUs | 1 | 40.0% |")
    assert "1 GPU" not in lines


def test_every_test_has_a_table_of_its_own() -> None:
    first = (_TEST, {"rows": [_run("a", "Theirs", 10.0, 11.0)]}, {"a": Blind(True, None)})
    other = BlindTest("Another", Path("runs_2.csv"), Path("second.csv"), "2", "By hash.")
    second = (other, {"rows": [_run("b", "Ours", 10.0, 9.0)]}, {"b": Blind(False, (9, 8, 11))})

    before, after = blind_tests_page([first, second]).split("## Another")

    assert "1 of 1 rows refused. Drawn by lot." in before
    assert "Ours" not in before
    assert "`runs_2.csv`; error bars times 2; 0 of 1 rows refused. By hash." in after
    assert "Theirs" not in after


def test_every_later_run_was_predicted_blind_and_error_bars_take_that() -> None:
    known, residuals = _ids(PUBLISHED_RUNS), _residuals()
    for number, test in enumerate(BLIND_TESTS, 1):
        ids = _ids(test.runs)

        first = read_blind(test.predictions)
        assert ids == set(first)
        assert not ids & known
        measured = {row.id: row.measured_iter_s for row in read_rows(test.runs)}
        told = {name: log for name, (of, log) in residuals.items() if of == number}
        assert set(told) <= {name for name, each in first.items() if each.times is not None}
        assert len(told) > 0.7 * len(ids)
        for name in set(told) & {name for name, each in measured.items() if each}:
            assert math.exp(told[name]) == pytest.approx(
                measured[name] / first[name].times[0], 1e-4
            )
        known |= ids


# Its sources whose SHA-256 three divides were drawn instead, before any of them was predicted.
_DRAWN_OTHERWISE = "Eighteenth test"
_DRAWN = [test for test in BLIND_TESTS[1:] if not test.name.startswith(_DRAWN_OTHERWISE)]


def test_a_third_of_the_sources_of_one_test_was_drawn() -> None:
    (test,) = (test for test in BLIND_TESTS if test.name.startswith(_DRAWN_OTHERWISE))
    blind = read_blind(test.predictions)
    for row in read_rows(test.runs):
        assert isinstance(row, Row)
        drawn = int(sha256(row.source.encode()).hexdigest(), 16) % 3 == 0
        assert blind[row.id].kept_apart is drawn


@pytest.mark.parametrize("test", _DRAWN, ids=lambda test: test.name)
def test_half_of_the_publications_was_drawn_by_the_rule(test: BlindTest) -> None:
    groups = {row.id: source_group(row) for row in read_rows(test.runs) if isinstance(row, Row)}

    # Nobody looks at the half whose names come first by SHA-256.
    names = sorted(set(groups.values()), key=lambda name: sha256(name.encode()).hexdigest())
    apart = names[: len(names) // 2]

    blind = read_blind(test.predictions)
    assert {key for key, first in blind.items() if first.kept_apart} == {
        key for key, group in groups.items() if group in apart
    }
    assert len(apart) == len(set(groups.values())) // 2


def _residuals() -> dict[str, tuple[int, float]]:
    lines = [line for line in RESIDUALS.read_text("utf-8").splitlines() if line[0] != "#"]
    return {
        row["id"]: (int(row["blind_test"]), float(row["log_residual"]))
        for row in csv.DictReader(lines)
    }


def _ids(path: Path) -> set[str]:
    rows = read_rows(path)
    assert all(isinstance(row, Row) for row in rows)
    return {row.id for row in rows}
