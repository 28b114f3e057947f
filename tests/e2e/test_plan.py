"""The real ``plan.py``: a tiny study from its first run to what changed since."""

import csv
import json
import signal
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from tests.e2e.commands import command, environment, files_in, run
from tests.listener import listener
from trainscout.commands.plan import once

STUDY = """
name: ours
models: [llama3_8b]
clusters: [h100_64, h200@h100_64]
num_gpus: [8, 16]
training: {global_batch_size: 64, tokens: 1.0e+9}
targets: {day: {days: 1}}
"""
# In closed form, whatever the model, of few recipes: every search takes milliseconds.
FAKE = "simulator.name=tests.optimizer.fake_simulator:FakeSimulator"
ARGUMENTS = ["--config-dir", "mine", "sweep=ours", "search=grid", FAKE, "n_jobs=1"]
ARGUMENTS += ["space=maya_table3", "space.knobs.recompute=full", "tracking=none"]
TRACKED = [*ARGUMENTS[:-1], "tracking=mlflow"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("place")
    (place / "mine/sweep").mkdir(parents=True)
    (place / "mine/sweep/ours.yaml").write_text(STUDY)
    return place


def runs_of(place: Path) -> list[Path]:
    return sorted(path.parent for path in place.glob("plans/ours/*/study.json"))


@pytest.fixture(scope="module")
def first(place):
    return run("plan.py", *TRACKED, cwd=place)


def test_a_study_is_answered_and_kept(first, place):
    assert "the cheapest cluster that meets every target is" in first.stdout
    directory = runs_of(place)[0]
    names = {path.name for path in directory.iterdir()}
    assert names == {
        "study.json",
        "study.csv",
        "report.txt",
        "report.html",
        "settings.yaml",
        "launch_llama3_8b.sh",
    }
    report, _, where = first.stdout.rpartition("Tracked: ")
    assert len(report.splitlines()) <= 30
    # The file has all there is to say, and is as wide as files are, whatever the terminal was.
    kept = (directory / "report.txt").read_text()
    assert kept.split()[:100] == report.split()[:100]
    assert "Scaling:" in kept
    assert "Scaling:" not in report
    assert where.startswith("sqlite:///mlflow.db")
    record = json.loads((directory / "study.json").read_text())
    assert [cell["status"] for cell in record["cells"]] == ["fits"] * 4
    rows = csv.DictReader((directory / "study.csv").open())
    assert [row["cluster"] for row in rows] == ["h100_64"] * 2 + ["h200@h100_64"] * 2


def test_a_study_is_in_mlflow_and_its_cells_once(first, place):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("trainscout")
    parent = client.get_run(first.stdout.split()[-1])
    assert parent.data.tags["study"] == "ours"
    left = {path.name for path in runs_of(place)[0].iterdir()}
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} == left

    again = run("plan.py", *TRACKED, cwd=place)
    assert "Since the last run: nothing changed." in again.stdout
    unchanged = client.get_run(again.stdout.split()[-1])
    assert unchanged.data.tags["children_in_run"] == parent.info.run_id
    cells = client.search_runs([experiment.experiment_id], "tags.kind = 'cell'")
    assert len(cells) == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in cells} == {parent.info.run_id}
    record = json.loads((runs_of(place)[-1] / "study.json").read_text())
    for field in ("days", "usd", "step_time_s", "mfu"):
        expected = sorted(cell[field] for cell in record["cells"])
        assert sorted(run.data.metrics[field] for run in cells) == pytest.approx(expected)


def test_a_dead_tracking_server_costs_a_warning(place, tmp_path):
    (tmp_path / "mine").symlink_to(place / "mine")
    done = run("plan.py", *TRACKED, "tracking.uri=http://127.0.0.1:9", cwd=tmp_path)
    assert "warning: not tracked in MLflow (http://127.0.0.1:9: " in done.stderr
    assert (runs_of(tmp_path)[-1] / "tracking.json").exists()


def test_programs_read_nothing_but_data(first, place, tmp_path):
    (tmp_path / "mine").symlink_to(place / "mine")
    told = run("plan.py", *ARGUMENTS, "format=json", cwd=tmp_path)
    content = json.loads(told.stdout)
    record = json.loads((runs_of(tmp_path)[-1] / "study.json").read_text())
    assert record.items() <= content.items()
    assert content["changes"] is None
    assert content["tracked"] is None
    assert content["answers"][0].startswith("llama3_8b, 1 B tokens: the cheapest")

    told = run("plan.py", *ARGUMENTS, "format=csv", "verbosity=quiet", cwd=tmp_path)
    assert told.stdout == (runs_of(tmp_path)[-1] / "study.csv").read_text()
    assert told.stderr == ""

    told = run("plan.py", *ARGUMENTS, "verbosity=quiet", cwd=tmp_path)
    assert " ".join(told.stdout.split()) == content["answers"][0]


def test_what_changed_is_told_and_nothing_is_searched_again(first, place):
    changed = ["sweep.prices_usd_per_hour.h100=9", "fail_on_change=true"]
    with listener() as (address, taken):
        done = run("plan.py", *ARGUMENTS, *changed, f"webhook={address}/", cwd=place, code=3)
    assert "0 searched" in done.stdout
    kinds = [
        change["kind"] for change in json.loads((runs_of(place)[-1] / "changes.json").read_text())
    ]
    assert kinds == ["answer", "usd", "usd"]
    ((_, told),) = taken
    assert told["study"] == "ours"
    assert told["changed"]
    assert len(told["changes"]) == 3


def test_two_runs_do_not_collide(first, place):
    before = files_in(place)
    with FileLock(place / "plans/ours/.running"):
        done = run("plan.py", *ARGUMENTS, cwd=place, code=2)
    assert "is being run by" in done.stderr
    assert files_in(place) == before


def test_ctrl_c_keeps_what_is_answered(place, tmp_path):
    (tmp_path / "mine").symlink_to(place / "mine")
    # Long enough to be interrupted.
    arguments = [*ARGUMENTS, "sweep.num_gpus=[8,16,24,32,40,48,56,64]"]
    process = subprocess.Popen(
        command("plan.py", *arguments),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("1/18 cells")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    kept = len(list(tmp_path.glob("plans/ours/cells/*.json")))
    assert kept >= 1
    again = run("plan.py", *arguments, cwd=tmp_path)
    assert f"{kept} known from before" in again.stdout


def test_a_scheduled_run_is_the_same_command_without_its_schedule():
    given = ["--config-dir", "mine", "sweep=ours", "schedule=0 2 * * 1", "n_jobs=1"]
    expected = ["--config-dir", "mine", "schedule=null", "sweep=ours", "n_jobs=1"]
    assert once(given) == expected
    assert once([]) == ["schedule=null"]
