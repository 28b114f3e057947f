import csv
import io
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.documented import blocks
from tests.in_process import command
from tests.samples import CLUSTER, GPU, MODEL, TRAINING, prediction, search_result, trial
from trainscout.optimizer.tracking.commands import BestRecipe, best_recipes, best_text
from trainscout.optimizer.tracking.runs import log_spooled, open_store
from trainscout.optimizer.tracking.spool import RunTree, spooled, write_spool
from trainscout.reports.tracker_runs import search_record
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe

main = command("tracking")

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


def answers(rows: list[BestRecipe]) -> list[tuple[str, int, float]]:
    return [(row.cluster, int(row.recipe[2]), row.step_time_s) for row in rows]


EXPECTED = [("other", 8, 3.0), ("pair", 4, 1.5)]


def test_the_best_of_each_cluster(found):
    rows = best_recipes(found)
    assert answers(rows) == EXPECTED
    assert rows[0].num_gpus == CLUSTER.num_gpus
    assert rows[0].model == MODEL.name
    assert rows[0].global_batch_size == TRAINING.global_batch_size
    assert rows[0].sequence_length == MODEL.sequence_length


def test_of_some_runs_only(found):
    assert answers(best_recipes(found, "tags.seed = '0'")) == [("pair", 2, 2.0)]


@pytest.mark.parametrize(
    ("changes", "where", "field"),
    [
        ({}, "tags.seed === 0", "--where"),
        ({"experiment": "trainscot"}, None, "--experiment"),
        ({"uri": "sqlite:///nowhere.db"}, None, "--uri"),
    ],
)
def test_wrong_input_is_refused_and_nothing_made(
    found, changes, where, field, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        best_recipes(replace(found, **changes), where)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_forms(found):
    rows = best_recipes(found)
    assert [row["recipe"] for row in json.loads(best_text(rows, "json"))] == [
        row.recipe for row in rows
    ]
    read = list(csv.DictReader(io.StringIO(best_text(rows, "csv"))))
    assert [float(row["step_time_s"]) for row in read] == [3.0, 1.5]
    table = best_text(rows, "table").splitlines()
    assert len(table) == 3
    assert table[1].startswith("tiny   other")
    assert table[2].endswith(rows[1].recipe)


def test_the_command(found, capsys, monkeypatch):
    # An earlier test's log handler may hold a stream that is closed by now.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    assert main(["best", "--uri", found.uri]) == 0
    assert "tp4" in capsys.readouterr().out
    assert main(["best", "--uri", found.uri, "--where", "tags.seed = '9'"]) == 1
    assert main(["best", "--uri", "mlflow.db"]) == 2
    assert main(["best", "--uri", "http://127.0.0.1:9"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_the_documented_conditions(found):
    client, experiment_id = open_store(found.uri, found.experiment)
    shown = [line for block in blocks(PAGE, "text") for line in block.splitlines()]
    assert len(shown) > 4
    for words in shown:
        client.search_runs([experiment_id], words)  # MLflow refuses what it cannot read
    simplest = next(words for words in shown if words.startswith("tags.rank = '1'"))
    runs = client.search_runs([experiment_id], simplest.replace("llama3_8b", MODEL.name))
    assert len(runs) == 3
