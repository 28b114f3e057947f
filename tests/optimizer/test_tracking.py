import socket
import threading
from dataclasses import replace

import pytest

from optimizer.tracking import (
    MlflowTracker,
    NoTracker,
    SearchRecord,
    TrackingError,
    TrackingSettings,
    flat_params,
    make_tracker,
    prediction_metrics,
)
from simulators.errors import InputError
from tests.samples import prediction, search_result


def record(tmp_path, **changes) -> SearchRecord:
    report = tmp_path / "report.txt"
    report.write_text("the report")
    result = search_result(**changes)
    return SearchRecord(
        name="tiny on pair",
        result=result,
        kept=[(trial, {"tp": trial.recipe.tp, "dp": 2}) for trial in result.best],
        params={f"key{i}": "x" * 600 for i in range(150)} | {"seed": 0},
        tags={"model": "tiny", "cluster": "pair", "group": "sweep-1"},
        artifacts=[report],
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for the module: MLflow takes seconds to create its tables."""
    directory = tmp_path_factory.mktemp("mlflow")
    return TrackingSettings(uri=f"sqlite:///{directory}/deep/mlflow.db")


def test_a_search_is_a_parent_run_with_a_child_per_kept_recipe(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = MlflowTracker(store).record(record(tmp_path))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.uri)
    experiment = client.get_experiment_by_name("trainscout")
    runs = client.search_runs([experiment.experiment_id], "tags.group = 'sweep-1'")
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 1
    parent = parents[0]
    assert parent.info.run_id in where
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["model"] == "tiny"
    assert parent.data.params["seed"] == "0"
    assert len(parent.data.params) == 151
    assert parent.data.metrics["trials/oom"] == 2
    assert parent.data.metrics["best/step_time_s"] == 2.0
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["report.txt"]

    children.sort(key=lambda run: int(run.data.tags["trainscout.rank"]))
    assert [run.data.params["tp"] for run in children] == ["4", "2"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert [run.data.tags["trainscout.pareto"] for run in children] == ["true", "false"]
    metrics = children[1].data.metrics
    assert metrics["step_time_s"] == 2.5
    assert metrics["mfu"] == 0.5
    assert metrics["memory/headroom_bytes"] == 10 * 2**30
    assert metrics["breakdown/bubble_s"] == pytest.approx(0.6)
    assert metrics["breakdown/bubble_s"] + metrics["breakdown/compute_s"] == pytest.approx(2.5)


def test_an_interrupted_search_is_marked_killed(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = MlflowTracker(store).record(record(tmp_path, stopped="interrupted"))
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
    tracker = MlflowTracker(TrackingSettings(uri=f"sqlite:///{path}"))
    with pytest.raises(TrackingError) as caught:
        tracker.record(record(tmp_path))
    assert "\n" not in str(caught.value)
    assert "database" in str(caught.value)


def test_a_server_that_is_down_is_an_error_not_a_hang(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tracker = MlflowTracker(TrackingSettings(uri=f"http://127.0.0.1:{port}", timeout_s=20))
    with pytest.raises(TrackingError, match=str(port)):
        tracker.record(record(tmp_path))


def test_a_silent_server_is_given_up_at_the_deadline(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        tracker = MlflowTracker(TrackingSettings(uri=uri, timeout_s=1))
        with pytest.raises(TrackingError, match="did not answer within 1 s"):
            tracker.record(record(tmp_path))


def test_building_a_tracker_does_not_wait_for_the_store():
    # The store opens beside the search: a builder that waited would block on this server.
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        built = threading.Event()

        def build() -> None:
            make_tracker(TrackingSettings(uri=uri))
            built.set()

        threading.Thread(target=build, daemon=True).start()
        assert built.wait(timeout=4.5)


def test_none_keeps_nothing(tmp_path):
    tracker = make_tracker(TrackingSettings(name="none"))
    assert isinstance(tracker, NoTracker)
    assert tracker.record(record(tmp_path)) is None


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


def test_configuration_is_flattened_to_dotted_names():
    assert flat_params({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}) == {
        "a.b": 1,
        "a.c.d": 2,
        "e": [3],
    }


def test_an_error_bar_becomes_two_metrics():
    bare = prediction()
    assert "step_time_low_s" not in prediction_metrics(bare)
    metrics = prediction_metrics(replace(bare, interval_s=(1.5, 2.5)))
    assert (metrics["step_time_low_s"], metrics["step_time_high_s"]) == (1.5, 2.5)
