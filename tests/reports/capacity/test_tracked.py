"""A study as runs for MLflow: one name a figure, one digest for equal answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.planning.fakes import SETTINGS, STUDY, answer, declarations
from tests.samples import prediction
from trainscout.optimizer.tracking.metrics import prediction_metrics
from trainscout.planning.answer import Answer
from trainscout.planning.changes import Change
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import run_study
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Target
from trainscout.reports.capacity.study_files import study_record
from trainscout.reports.capacity.tracked import study_runs

NOTE = "mlflow.note.content"
CONFIGURED = {"search": {"sampler": "exact"}, "seed": 4, "sweep": {"name": "toy"}}


def runs_of(tmp_path, *, price=2.0, settings=CONFIGURED, found=None, started="today", without=0):
    """The runs of a study of six cells, of which ``without`` have no answer."""

    def search(cell):
        if without and cell.num_gpus == 8 and (without > 1 or cell.cluster == "here"):
            return Answer("nothing_fits", reason="No recipe fits\nClosest miss: x")
        return answer(16 / cell.num_gpus)

    study = replace(
        STUDY,
        clusters=("here", "there"),
        targets={"fits": Target(), "soon": Target(days=50)},
        prices_usd_per_hour={"other": price},
    )
    outcome = run_study(
        study,
        declarations(),
        Reliability(),
        AnswerStore(tmp_path / "cells", SETTINGS),
        search,
        n_jobs=1,
        on_progress=lambda _: None,
    )
    record = study_record(outcome, started=started, commit="abc", groups={})
    tree = study_runs(
        outcome,
        record,
        settings=settings,
        found=found,
        directory=Path("2026-11-20"),
        files=["report.html", "study.json"],
    )
    return tree, record


def test_each_cell_is_a_child_with_the_figures_of_the_record(tmp_path):
    tree, record = runs_of(tmp_path)
    assert len(tree.children) == 6
    assert [path.name for path in tree.artifacts] == ["report.html", "study.json"]
    for child, cell in zip(tree.children, record["cells"], strict=True):
        for name in ("days", "usd", "gpu_hours", "mfu", "step_time_s", "goodput_share"):
            assert child.metrics[name] == cell[name]
        assert (child.metrics["days_low"], child.metrics["days_high"]) == cell["days_interval"]
        assert child.metrics["memory/needed_gib"] == cell["needed_bytes"] / 2**30
        assert child.params["num_gpus"] == str(cell["num_gpus"])
        assert child.params["tp"] == "1"
        assert "etp" not in child.params
        assert child.tags["recipe"] == cell["recipe_words"]
        assert child.tags["answer"] == str(cell["key"] == record["models"][0]["answer"]).lower()
        assert cell["command"] in child.tags[NOTE]
    assert tree.children[0].name == "small: 8 x here"


def test_a_cell_calls_its_figures_as_a_recipe_does(tmp_path):
    tree, _ = runs_of(tmp_path)
    of_recipe = set(prediction_metrics(replace(prediction(), interval_s=(1.0, 3.0))))
    own = {"days", "days_low", "days_high", "gpu_hours", "usd", "goodput_share"}
    assert set(tree.children[0].metrics) - of_recipe == own


def test_what_a_study_is_found_by(tmp_path):
    tree, record = runs_of(tmp_path, found=[Change("usd", "a cell", "$1", "$2", 1.0)])
    parent = tree.parent
    assert parent.name == "toy, 6 cells"
    expected = {"kind": "study", "study": "toy", "sampler": "exact", "objective": "step_time"}
    expected |= {"seed": "4", "group": "2026-11-20", "mlflow.source.name": "trainscout plan"}
    assert expected.items() <= parent.tags.items()
    answers = [cell for cell in record["cells"] if cell["key"] == record["models"][0]["answer"]]
    assert parent.metrics["best/small/usd"] == answers[0]["usd"]
    assert parent.metrics["cells/fits"] == 6
    assert parent.metrics["changes"] == 1
    note = parent.tags[NOTE]
    assert note.startswith("- small, 1 T tokens: the cheapest cluster that meets every target")
    assert "| here | 32 |" in note
    assert "- usd of a cell: $1 -> $2 (+100.0%)" in note


def test_a_cell_without_an_answer_says_why(tmp_path):
    tree, _ = runs_of(tmp_path, without=1)
    child = tree.children[0]
    assert child.metrics == {}
    assert child.tags["status"] == "nothing_fits"
    assert "rank" not in child.tags
    assert "Closest miss: x" in child.tags[NOTE]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"started": "tomorrow", "found": []}, True),
        ({"price": 3.0}, False),
        ({"without": 1}, False),
    ],
)
def test_equal_cells_and_answers_have_one_digest(tmp_path, changes, same):
    first, _ = runs_of(tmp_path)
    second, _ = runs_of(tmp_path / "second", **changes)
    assert (first.children_digest == second.children_digest) == same
