import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reports.search_page.searches import (
    LAUNCH,
    PROOF,
    RECIPES,
    nothing_fits,
    searched,
    several_objectives,
)
from trainscout.optimizer.trial import Choices
from trainscout.reports.search_page import page_data
from trainscout.reports.search_page.page_data import MOST_RECIPES, page_record
from trainscout.reports.trials import choices_of
from trainscout.simulators.virtual_cluster.traced.verification import (
    RankCheck,
    RankFigures,
    Verification,
)

ASSETS = Path(page_data.__file__).with_name("assets")


def test_figures_are_those_of_the_predictions():
    search = searched()
    record = page_record(search)
    assert len(record["recipes"]) == len(RECIPES)
    for row, trial in zip(record["recipes"], search.shown, strict=True):
        prediction = trial.prediction
        for name in ("step_time_s", "mfu", "hfu", "tokens_per_s", "cost_of_run_usd"):
            assert row[name] == getattr(prediction, name)
        assert (row["low_s"], row["high_s"]) == prediction.interval_s
        assert row["headroom_bytes"] == prediction.memory.headroom_bytes
        assert row["breakdown_s"] == prediction.breakdown_s
        assert row["days"] == pytest.approx(1e9 / prediction.tokens_per_s / 86400)
        assert row["grades"]["memory"]["grade"] == "estimated"


def test_waterfalls_lead_from_the_first_to_each():
    record = page_record(searched())
    best = record["recipes"][0]
    for row, bars in zip(record["recipes"], record["waterfalls"], strict=True):
        gap = row["step_time_s"] - best["step_time_s"]
        assert sum(bar["seconds"] for bar in bars) == pytest.approx(gap, abs=1e-9)


def test_the_first_rival_has_another_layout():
    record = page_record(searched())
    assert record["recipes"][record["rival"]]["layout"] != record["recipes"][0]["layout"]


def test_is_json_without_loss():
    record = page_record(searched())
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text)["launch"] == [
        {"name": name, "text": text} for name, text in LAUNCH.items()
    ]


def test_says_how_to_come_to_it_again():
    facts = dict(page_record(searched())["provenance"])
    assert facts["command"] == "trainscout optimize model=tiny"
    assert facts["seed"] == "7"
    assert facts["Trainscout"] == "1.2"
    assert facts["git commit"] == "unknown"
    assert "0123abcd" in facts["settings"]
    assert "published runs" in facts["error bars"]


def test_what_a_promotion_simulator_said_stands_in_every_figure():
    search = searched()
    best = search.shown[0]
    slower = replace(best.prediction, step_time_s=best.prediction.step_time_s * 2)
    best = replace(best, prediction=slower, searched_values=best.values)
    result = replace(search.result, best=(best, *search.shown[1:]), pareto=(best,))
    record = page_record(replace(search, result=result, shown=result.best))
    row = record["trials"]["number"].index(best.number)
    figures = record["trials"]["simulated"]
    shown_s = figures["step_time_s"][figures["row"].index(row)]
    assert shown_s == pytest.approx(record["recipes"][0]["step_time_s"], rel=1e-5)


def test_without_a_recipe_that_fits_it_has_the_closest_miss():
    record = page_record(nothing_fits())
    assert not record["answered"]
    assert record["nothing"][0].startswith("No recipe fits")
    assert record["nothing"][-1] == "A larger GPU helps."
    (miss,) = record["recipes"]
    assert miss["headroom_bytes"] == -3 * 2**30
    assert "sensitivity" not in record
    assert "waterfalls" not in record


def test_without_any_simulated_recipe_it_is_still_a_record():
    empty = nothing_fits()
    trials = tuple(trial for trial in empty.result.trials if trial.prediction is None)
    record = page_record(replace(empty, result=replace(empty.result, trials=trials)))
    assert record["recipes"] == record["memory"] == []
    assert "pipeline" not in record


def test_several_objectives_have_no_best():
    search = several_objectives("step_time", "memory", count=2)
    record = page_record(search)
    assert record["why"] is None
    assert record["distinguishable"] is None
    assert record["pareto"] == [trial.number for trial in search.shown]
    assert [each["name"] for each in record["objectives"]] == ["step_time", "memory"]


def test_a_long_front_is_cut_where_it_is_drawn_side_by_side():
    search = searched(shown=searched().shown * 10)
    assert len(page_record(search)["recipes"]) == MOST_RECIPES


def test_a_proof_is_told():
    search = searched()
    record = page_record(replace(search, result=replace(search.result, certificate=PROOF)))
    assert record["search"]["proof"].startswith("No other recipe of the space beats")


def test_what_tracing_found_stands_side_by_side():
    figures = RankFigures(100, 110, 50, 1000, {"tp": 7})
    traced = replace(figures, peak_allocated_bytes=104, communicated_bytes={"tp": 7, "dp": 3})
    check = Verification(
        recipe=RECIPES[0],
        micro_batches=4,
        step_micro_batches=16,
        builtin_step_s=2.0,
        traced_step_s=2.1,
        builtin_parts_s={"compute": 1.9, "host": 0.001},
        traced_parts_s={"compute": 2.0, "host": 0.001},
        ranks=(RankCheck(0, 0, figures, traced, ("a copy",)),),
    )
    failed = Verification(recipe=RECIPES[1], micro_batches=1, step_micro_batches=1, problem="x")
    found, other = page_record(searched(checks=(check, failed)))["checked"]
    rows = {row["label"]: (row["builtin"], row["traced"]) for row in found["rows"]}
    assert rows["step"] == (2.0, 2.1)
    assert rows["of it compute"] == (1.9, 2.0)
    assert "of it host" not in rows
    assert rows["rank 0, stage 0: peak allocated"] == (100, 104)
    assert rows["rank 0, stage 0: communicated, dp"] == (0.0, 3)
    assert found["differences"] == [{"rank": 0, "words": ["a copy"]}]
    assert (other["problem"], other["rows"]) == ("x", [])


def test_scripts_read_what_it_has():
    scripts = "".join(path.read_text("utf-8") for path in ASSETS.glob("*.js"))
    read = set(re.findall(r"\brecord\.([a-z_]+)", scripts))
    assert read <= {*page_record(searched()), *page_record(nothing_fits())}


def test_recipes_say_what_speaks_for_them():
    search = searched()
    best, other, roomy, *_ = search.result.best
    choices = Choices(layouts=(best, other), roomy=roomy)
    result = replace(search.result, choices=choices)
    assert choices_of(result) == [(best, ""), (other, ""), (roomy, "if you fear out-of-memory")]
    record = page_record(replace(search, result=result, shown=(best, other, roomy)))
    assert [row["note"] for row in record["recipes"]] == ["", "", "if you fear out-of-memory"]
