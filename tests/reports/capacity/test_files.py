"""What a run of a study leaves behind."""

import json
from dataclasses import replace

import pytest

from tests.planning.fakes import SETTINGS, STUDY, answer, declarations
from trainscout.planning.changes import Change
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import StudyOutcome, run_study
from trainscout.planning.store import AnswerStore
from trainscout.reports.capacity import files
from trainscout.reports.capacity.files import launch_scripts, study_texts
from trainscout.reports.capacity.study_files import study_record
from trainscout.reports.launch.directory import megatron_launch


@pytest.fixture
def outcome(tmp_path) -> StudyOutcome:
    return run_study(
        STUDY,
        declarations(),
        Reliability(),
        AnswerStore(tmp_path, SETTINGS),
        lambda asked: answer(16 / asked.num_gpus),
        n_jobs=1,
        on_progress=lambda _: None,
    )


def test_the_files_of_a_run(outcome):
    record = study_record(outcome, started="today", commit=None, groups={})
    given = {"report": "the report", "settings": "a: 1\n"}
    first = study_texts(outcome, record, Reliability(), None, **given)
    plain = {"report.txt", "study.csv", "report.html", "settings.yaml", "launch_small.sh"}
    assert set(first) == plain
    assert (first["report.txt"], first["settings.yaml"]) == ("the report", "a: 1\n")
    changes = [Change("usd", "a cell", "$1", "$2", 1.0)]
    again = study_texts(outcome, record, Reliability(), changes, **given)
    assert set(again) == plain | {"changes.json"}
    assert json.loads(again["changes.json"]) == [changes[0].to_json()]
    assert "usd of a cell: $1 -&gt; $2 (+100.0%)" in again["report.html"]


def test_a_recipe_that_the_framework_refuses_has_no_script(outcome, monkeypatch):
    assert set(launch_scripts(outcome)) == {"small"}

    class Refused:
        script_text = None

    monkeypatch.setattr(files, "first_launch", lambda _: Refused())
    assert launch_scripts(outcome) == {}


def test_a_model_of_a_group_within_the_group_has_its_script_in_the_run_itself(outcome):
    model = replace(outcome.models[0], model="team/small")
    outcome = replace(outcome, models=(model,))
    record = study_record(outcome, started="today", commit=None, groups={})
    texts = study_texts(outcome, record, Reliability(), None, report="", settings="")
    assert "launch_team_small.sh" in texts


def test_a_script_is_of_the_answer(outcome):
    chosen = outcome.models[0].chosen
    launch = megatron_launch(chosen.cell.question.job(chosen.best.recipe))
    assert launch_scripts(outcome)["small"] == launch.script_text
