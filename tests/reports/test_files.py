import csv
import io
import json
from dataclasses import fields, replace

import pytest

from tests.samples import job_of, search_result
from trainscout.reports.files import top_recipes_json, trials_csv
from trainscout.simulators.predictor.question.recipe import Recipe


def test_top_recipes_are_best_first_with_the_fixed_names():
    rows = json.loads(top_recipes_json(search_result().best, job_of))
    assert [row["recipe"]["tp"] for row in rows] == [4, 2]
    assert rows[0]["recipe"]["dp"] == 2  # 16 GPUs / (tp 4 x pp 2)
    for name in ("step_time_s", "mfu", "hfu", "tokens_per_s", "cost_per_step_usd", "fits"):
        assert name in rows[0]["prediction"]
    stage = rows[0]["prediction"]["memory"]["per_stage"][0]
    assert stage["kind"]["parameters"] == 2 * 2**30
    assert [row["tie_share"] for row in rows] == [None, None]


def test_top_recipes_say_which_lead_counts():
    best = [
        replace(each, prediction=replace(each.prediction, interval_s=(1.0, 3.0)))
        for each in search_result().best
    ]
    rows = json.loads(top_recipes_json(best, job_of))
    assert rows[0]["tie_share"] == 0
    assert rows[1]["tie_share"] > 0
    assert rows[0]["prediction"]["interval_s"] == [1.0, 3.0]


def test_one_row_per_trial_with_status_and_rule():
    result = search_result()
    rows = list(csv.DictReader(io.StringIO(trials_csv(result, job_of))))
    assert [row["status"] for row in rows] == [t.status for t in result.trials]
    assert rows[3]["rule"] == "degrees_divide_world"
    assert rows[3]["dp"] == ""
    assert rows[3]["step_time_s"] == ""
    assert rows[0]["dp"] == "2"
    assert float(rows[0]["breakdown_s.bubble"]) == pytest.approx(0.1)
    assert float(rows[0]["objective.cost"]) == pytest.approx(0.02)
    assert {field.name for field in fields(Recipe)} <= set(rows[0])
