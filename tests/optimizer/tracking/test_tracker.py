import json
import socket
import threading
from dataclasses import replace

import pytest

from tests.in_process import command
from tests.optimizer.tracking.trees import tree
from trainscout.optimizer.tracking.runs import log_spooled, open_store
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import SPOOL, make_run, read_spool, spooled, write_spool
from trainscout.optimizer.tracking.tracker import Tracker, TrackingError
from trainscout.simulators.predictor.question.errors import InputError

main = command("tracking")


def test_a_search_is_a_parent_run_with_its_children(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = Tracker(store).record(tree(tmp_path))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.uri)
    experiment = client.get_experiment_by_name("trainscout")
    runs = client.search_runs([experiment.experiment_id], "tags.group = 'sweep-1'")
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert parent.info.run_id in where
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "tiny on pair")
    assert (parent.info.start_time, parent.info.end_time) == (1000, 3000)
    assert parent.data.tags["model"] == "tiny"
    assert "nothing" not in parent.data.tags
    assert parent.data.params["seed"] == "0"
    assert len(parent.data.params) == 151
    assert parent.data.metrics["best/step_time_s"] == 2.0
    assert "unknown" not in parent.data.metrics
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["report.txt"]

    children.sort(key=lambda run: int(run.data.tags["rank"]))
    assert [run.data.params["tp"] for run in children] == ["8", "4"]
    assert [run.data.metrics["step_time_s"] for run in children] == [2.0, 4.0]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.data.tags["record_id"] for run in children} == {parent.data.tags["record_id"]}


def test_mlflow_shows_the_experiment_as_model_training(fresh):
    client, experiment_id = open_store(fresh.uri, fresh.experiment)
    tags = client.get_experiment(experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(tags["mlflow.sharedViewState.trainscout"])
    assert "metrics.`best/step_time_s`" in view["selectedColumns"]
    # What its users chose since stays; what is missing is added.
    client.set_experiment_tag(experiment_id, "mlflow.experimentKind", "finetuning")
    client.delete_experiment_tag(experiment_id, "mlflow.sharedViewState.trainscout")
    open_store(fresh.uri, fresh.experiment)
    again = client.get_experiment(experiment_id).tags
    assert again["mlflow.experimentKind"] == "finetuning"
    assert json.loads(again["mlflow.sharedViewState.trainscout"]) == view


def test_names_that_mlflow_refuses_are_spelled_otherwise(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"params": {"sweep.targets.< 30 days (2026).days": 30, "sweep.what_ifs.a//b": 1}}
    run = make_run("r", 0, 1, metrics={"best/my+model/usd": 1}, tags={"rank": 1}, **given)
    where = Tracker(fresh).record(tree(tmp_path, parent=run, children=()))
    client, _ = open_store(fresh.uri, fresh.experiment)
    logged = client.get_run(where.rsplit(" ", 1)[1]).data
    assert set(logged.params) == {"sweep.targets._ 30 days _2026_.days", "sweep.what_ifs.a__b"}
    assert set(logged.metrics) == {"best/my_model/usd"}


def test_a_series_has_a_value_at_each_of_its_steps(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = Tracker(fresh).record(tree(tmp_path, steps=950))
    client, _ = open_store(fresh.uri, fresh.experiment)
    points = client.get_metric_history(where.rsplit(" ", 1)[1], "best_so_far/step_time_s")
    assert {(point.step, point.value) for point in points} == {
        (step, 1000.0 - step) for step in range(950)
    }


def test_children_that_the_store_has_are_not_logged_again(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = Tracker(fresh)
    first = tracker.record(tree(tmp_path, digest="a")).rsplit(" ", 1)[1]
    again = tracker.record(tree(tmp_path, digest="a")).rsplit(" ", 1)[1]
    assert len(runs_in(fresh)) == 4
    client, _ = open_store(fresh.uri, fresh.experiment)
    assert client.get_run(again).data.tags["children_in_run"] == first
    # The first has them, however often they are the same.
    third = tracker.record(tree(tmp_path, digest="a")).rsplit(" ", 1)[1]
    assert client.get_run(third).data.tags["children_in_run"] == first
    tracker.record(tree(tmp_path, digest="b"))
    assert len(runs_in(fresh)) == 8


def test_an_interrupted_search_is_marked_killed(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = Tracker(store).record(tree(tmp_path, status="KILLED"))
    from mlflow.tracking import MlflowClient

    run = MlflowClient(tracking_uri=store.uri).get_run(where.rsplit(" ", 1)[1])
    assert run.info.status == "KILLED"


@pytest.mark.parametrize("content", [b"this is not a database" * 100, None])
def test_an_unusable_database_is_one_line_at_once(tmp_path, content):
    path = tmp_path / "mlflow.db"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    tracker = Tracker(TrackingSettings(uri=f"sqlite:///{path}"))
    with pytest.raises(TrackingError) as caught:
        tracker.record(tree(tmp_path))
    assert "\n" not in str(caught.value)
    assert "database" in str(caught.value)


def test_a_server_that_is_down_is_an_error_not_a_hang(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tracker = Tracker(TrackingSettings(uri=f"http://127.0.0.1:{port}", timeout_s=20))
    with pytest.raises(TrackingError, match=str(port)):
        tracker.record(tree(tmp_path))


def test_a_silent_server_is_given_up_at_the_deadline(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        tracker = Tracker(TrackingSettings(uri=uri, timeout_s=1))
        with pytest.raises(TrackingError, match="did not answer within 1 s"):
            tracker.record(tree(tmp_path))


def test_building_a_tracker_does_not_wait_for_the_store():
    # The store opens beside the search: a builder that waited would block on this server.
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        built = threading.Event()

        def build() -> None:
            Tracker(TrackingSettings(uri=uri))
            built.set()

        threading.Thread(target=build, daemon=True).start()
        assert built.wait(timeout=4.5)


def test_none_keeps_nothing(tmp_path):
    tracker = Tracker(TrackingSettings(name="none"))
    assert tracker.record(tree(tmp_path)) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"uri": "mlflow.db"}, "tracking.uri"),
        ({"uri": "sqlit:///mlflow.db"}, "tracking.uri"),
        ({"name": "wandb"}, "tracking.name"),
        ({"timeout_s": 0.0}, "tracking.timeout_s"),
        ({"timeout_s": float("nan")}, "tracking.timeout_s"),
        ({"experiment": " "}, "tracking.experiment"),
    ],
)
def test_settings_are_refused_by_field(changes, field):
    with pytest.raises(InputError) as caught:
        replace(TrackingSettings(), **changes).check()
    assert caught.value.field == field


def test_the_nearest_scheme_is_offered():
    with pytest.raises(InputError, match="sqlite"):
        TrackingSettings(uri="sqlit:///mlflow.db").check()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def runs_in(settings):
    client, experiment_id = open_store(settings.uri, settings.experiment)
    return client.search_runs([experiment_id], max_results=1000)


class TestFlushing:
    def test_what_no_server_took_is_logged_by_the_command(self, fresh, tmp_path, capsys, cwd):
        down = replace(fresh, uri=f"http://127.0.0.1:{free_port()}")
        with pytest.raises(TrackingError, match="flush"):
            Tracker(down).record(tree(tmp_path))
        assert (tmp_path / SPOOL).stat().st_mode & 0o077 == 0
        assert main(["flush", str(tmp_path.parent)]) == 1
        assert main(["flush", str(tmp_path.parent), "--uri", fresh.uri]) == 0
        assert not (tmp_path / SPOOL).exists()
        assert len(runs_in(fresh)) == 3
        assert main(["flush", str(tmp_path.parent), "--uri", fresh.uri]) == 0
        assert "No search waits" in capsys.readouterr().out
        assert len(runs_in(fresh)) == 3

    def test_what_was_logged_is_not_kept(self, fresh, tmp_path, cwd):
        Tracker(fresh).record(tree(tmp_path))
        assert not (tmp_path / SPOOL).exists()

    def test_a_store_that_fails_half_way_leaves_no_halves(self, fresh, tmp_path, cwd):
        path = write_spool(tmp_path, spooled(tree(tmp_path), fresh))
        client, experiment_id = open_store(fresh.uri, fresh.experiment)
        # The last thing to be logged is missing.
        (tmp_path / "report.txt").rename(tmp_path / "away.txt")
        with pytest.raises(OSError, match="report"):
            log_spooled(client, experiment_id, path, again=False)
        (tmp_path / "away.txt").rename(tmp_path / "report.txt")
        halves = {run.info.run_id for run in runs_in(fresh)}
        assert len(halves) == 3
        parent = log_spooled(client, experiment_id, path, again=True)
        whole = {run.info.run_id for run in runs_in(fresh)}
        assert len(whole) == 3
        assert not whole & halves
        assert client.get_run(parent).info.status == "FINISHED"

    def test_a_search_that_did_get_through_is_not_logged_twice(self, fresh, tmp_path, cwd):
        path = write_spool(tmp_path, spooled(tree(tmp_path), fresh))
        again = path.read_text()
        client, experiment_id = open_store(fresh.uri, fresh.experiment)
        first = log_spooled(client, experiment_id, path, again=False)
        path.write_text(again)
        assert log_spooled(client, experiment_id, path, again=True) == first
        assert len(runs_in(fresh)) == 3

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2, "rm": "-rf"}', "[" * 9000])
    def test_something_else_is_refused_and_left(self, tmp_path, content, capsys):
        (tmp_path / SPOOL).write_text(content)
        with pytest.raises(ValueError, match="no spooled search"):
            read_spool(tmp_path / SPOOL)
        assert main(["flush", str(tmp_path)]) == 1
        assert (tmp_path / SPOOL).read_text() == content
        assert "Traceback" not in capsys.readouterr().err

    @pytest.mark.parametrize(
        "planted",
        [
            {"artifacts": ("/etc/passwd",)},
            {"artifacts": ("../elsewhere.txt",)},
            {"artifacts": ("link.txt",)},
            {"uri": "file:///srv/mlruns"},
            {"record_id": "x' OR tags.record_id != '"},
            {"children_digest": "x' OR tags.a != '"},
        ],
        ids=str,
    )
    def test_only_files_beside_it_are_sent(self, fresh, tmp_path, capsys, cwd, planted):
        (tmp_path / "search").mkdir()
        (tmp_path / "elsewhere.txt").write_text("private")
        (tmp_path / "search/link.txt").symlink_to(tmp_path / "elsewhere.txt")
        waiting = spooled(tree(tmp_path / "search"), fresh)
        write_spool(tmp_path / "search", replace(waiting, **planted))
        assert main(["flush", str(tmp_path), "--uri", fresh.uri]) == 1
        assert "no spooled search" in capsys.readouterr().err
        assert runs_in(fresh) == []

    def test_what_an_older_version_left_is_said_and_stops_no_other(
        self, fresh, tmp_path, capsys, cwd
    ):
        old, new = tmp_path / "a", tmp_path / "b"
        old.mkdir()
        new.mkdir()
        (old / SPOOL).write_text('{"format": 1, "record_id": "x"}')
        write_spool(new, spooled(tree(new), fresh))
        assert main(["flush", str(tmp_path)]) == 1
        assert (old / SPOOL).exists()
        assert not (new / SPOOL).exists()
        assert len(runs_in(fresh)) == 3
        stated = capsys.readouterr().err
        assert stated.startswith(f"warning: {old / SPOOL} was left by another version")
        assert "format 1, not 2" in stated

    @pytest.mark.parametrize("wrong", [["nowhere"], [".", "--uri", "mlflow.db"]])
    def test_bad_input(self, wrong, capsys):
        assert main(["flush", *wrong]) == 2
        assert capsys.readouterr().err.startswith("error:")

    @pytest.fixture
    def cwd(self, tmp_path, monkeypatch):
        """MLflow puts artifacts below the working directory."""
        monkeypatch.chdir(tmp_path)
