import csv
import io
import json
from pathlib import Path

from tests.samples import job_of, prediction, search_result
from trainscout.reports.for_programs import (
    prediction_csv,
    prediction_json,
    search_csv,
    search_json,
)
from trainscout.simulators.predictor.question.recipe import Recipe


def searched(**changes):
    result = search_result(**changes)
    text = search_json(
        result,
        result.best,
        job_of,
        directory=Path("outputs/here"),
        files=[Path("outputs/here/launch.sh"), Path("outputs/here/launch/slurm.sbatch")],
        tracked=None,
        relief=["Would fit: more."] if not result.best else [],
    )
    return json.loads(text)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_search_is_one_object():
    record = searched()
    first, second = record["recipes"]
    assert (first["recipe"]["tp"], first["recipe"]["dp"]) == (4, 2)
    assert first["prediction"]["step_time_s"] == 2.0
    assert first["evidence"]["step_time_s"] == "estimated"
    assert second["prediction"]["step_time_s"] == 2.5
    assert "500 ms" in record["why_best"]
    assert record["why_nothing"] is None
    assert record["counts"] == {
        "ok": 2,
        "tight": 0,
        "oom": 2,
        "pruned": 1,
        "invalid": 1,
        "failed": 1,
    }
    assert record["counts_by_rule"]["pruned"] == {"recompute_dominated": 1}
    assert record["files"] == ["launch.sh", "launch/slurm.sbatch"]


def test_keys_are_those_of_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "output.md").read_text("utf-8")
    _, _, page = page.partition("## A search in JSON")
    for key in searched():
        assert f"`{key}`" in page.split("\n## ")[0], key


def test_nothing_found_is_an_answer_too():
    trials = tuple(t for t in search_result().trials if t.status != "ok")
    record = searched(trials=trials, best=(), pareto=())
    assert record["recipes"] == []
    assert record["why_nothing"][0].startswith("No recipe fits")
    assert record["would_fit"] == ["Would fit: more."]


def test_a_search_in_rows():
    result = search_result()
    first, second = rows_of(search_csv(result, result.best, job_of))
    assert (first["rank"], first["tp"], first["dp"], first["step_time_s"]) == (
        "1",
        "4",
        "2",
        "2.0",
    )
    assert second["breakdown_s.bubble"] == "0.6"
    assert rows_of(search_csv(result, (), job_of)) == []


def test_a_prediction_is_itself_with_its_evidence():
    record = json.loads(prediction_json(prediction(), job_of(Recipe(tp=2)), {"network": []}))
    assert record.pop("network") == []
    assert record.pop("evidence")["cost_of_run_usd"] == "estimated"
    assert record == json.loads(json.dumps(prediction().to_dict()))


def test_a_prediction_in_one_row():
    (row,) = rows_of(prediction_csv(prediction(headroom_gib=-2.0), job_of(Recipe(tp=2))))
    assert (row["status"], row["tp"], row["dp"], row["fits"]) == ("oom", "2", "8", "False")
    assert "number" not in row
