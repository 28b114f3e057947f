"""Runs of an MLflow experiment, by a client that stands in for MLflow's."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from trainscout.simulators.laboratory.calibration.tables_of_runs import read_experiment
from trainscout.simulators.predictor.question.errors import InputError

SAID = {"model": "llama3_8b", "cluster": "h100_64", "global_batch_size": "512", "lr": "1e-4"}


class Client:
    def __init__(self, tracking_uri):
        assert tracking_uri == "file:runs"

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="1") if name == "ours" else None

    def search_experiments(self):
        return [SimpleNamespace(name="ours")]

    def search_runs(self, experiments, max_results):
        assert experiments == ["1"]
        kinds = ({}, {"kind": "recipe"}, {})
        return [
            SimpleNamespace(
                info=SimpleNamespace(run_id=str(n), run_name=f"run {n}"),
                data=SimpleNamespace(tags=tags, params=SAID | ({"tp": "3"} if n == 2 else {})),
            )
            for n, tags in enumerate(kinds)
        ]

    def get_metric_history(self, run_id, name):
        values = (9.0, 5.0, 5.2, 4.9) if name == "step_time_s" else ()
        return [SimpleNamespace(value=value) for value in values]


@pytest.fixture(autouse=True)
def mlflow(monkeypatch):
    package, exceptions = ModuleType("mlflow"), ModuleType("mlflow.exceptions")
    package.get_tracking_uri = lambda: "file:runs"
    package.tracking = ModuleType("mlflow.tracking")
    package.tracking.MlflowClient = Client
    exceptions.MlflowException = type("MlflowException", (Exception,), {})
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", package.tracking)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)


def test_parameters_are_settings_and_metrics_measure():
    (run,), (left,) = read_experiment("ours", "file:runs")
    assert (run.name, run.measured_s) == ("run 0", pytest.approx(5.1))
    assert run.job.training.global_batch_size == 512
    assert left.startswith("run 2 (line 3): recipe.tp=3")


def test_an_unknown_experiment_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"is no experiment there.*ours"):
        read_experiment("our", "file:runs")


def test_a_store_that_is_not_there_is_not_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"--tracking-uri=sqlite:///runs\.db: is not there"):
        read_experiment("ours", "sqlite:///runs.db")
    assert not list(tmp_path.iterdir())
