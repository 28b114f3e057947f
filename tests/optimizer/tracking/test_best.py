from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.documented import blocks
from tests.samples import CLUSTER, GPU, MODEL, TRAINING, prediction, search_result, trial
from trainscout.optimizer.tracking.runs import log_spooled, open_store
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import RunTree, spooled, write_spool
from trainscout.reports.tracker_runs import search_record
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe

PAGE = "docs/mlflow.md"


def searched(directory: Path, cluster: str, seed: int, step_time_s: float, tp: int) -> RunTree:
    """A search whose best recipe has ``tp``, and takes so long."""
    best = trial(0, Recipe(tp=tp), prediction=prediction(step_time_s))
    second = trial(1, Recipe(tp=1), prediction=prediction(step_time_s + 1))
    result = search_result(trials=(best, second), best=(best, second), pareto=(best,))
    question = Question(MODEL, GPU, replace(CLUSTER, name=cluster), TRAINING)
    settings = {"seed": seed, "search": {"sampler": "tpe"}, "objective": {"names": ["cost"]}}
    return search_record(
        result,
        question,
        settings=settings,
        group="",
        directory=directory,
        files=[],
    )


@pytest.fixture(scope="module")
def found(store, tmp_path_factory):
    """Two searches on one cluster, the second better, and one on another, in the experiment that
    is the default."""
    directory = tmp_path_factory.mktemp("searches")
    store = replace(store, uri=f"sqlite:///{directory}/mlflow.db")
    client, experiment_id = open_store(store.uri, store.experiment)
    for number, (cluster, step_time_s, tp) in enumerate(
        [("pair", 2.0, 2), ("pair", 1.5, 4), ("other", 3.0, 8), ("script", 1.0, 1)]
    ):
        tree = searched(directory, cluster, number, step_time_s, tp)
        for run in tree.children:
            # As cells of a study are tracked, and a script's launches.
            del run.metrics["memory/peak_reserved_gib"]
            if cluster == "script":
                del run.tags["model"]
        log_spooled(
            client, experiment_id, write_spool(directory, spooled(tree, store)), again=False
        )
    return store


def test_the_documented_query(found):
    (code,) = blocks(PAGE, "python")
    assert TrackingSettings.uri in code
    names: dict[str, Any] = {}
    try:
        exec(code.replace(TrackingSettings.uri, found.uri), names)
    finally:
        names["mlflow"].set_tracking_uri(None)
    rows = names["best"].sort_values("tags.cluster")[["tags.cluster", "tags.recipe"]]
    assert [(cluster, recipe[:3]) for cluster, recipe in rows.to_numpy()] == [
        ("other", "tp8"),
        ("pair", "tp4"),
    ]


def test_the_documented_conditions(found):
    client, experiment_id = open_store(found.uri, found.experiment)
    shown = [line for block in blocks(PAGE, "text") for line in block.splitlines()]
    assert len(shown) > 4
    for words in shown:
        client.search_runs([experiment_id], words)  # MLflow refuses what it cannot read
    simplest = next(words for words in shown if words.startswith("tags.rank = '1'"))
    runs = client.search_runs([experiment_id], simplest.replace("llama3_8b", MODEL.name))
    assert len(runs) == 3
