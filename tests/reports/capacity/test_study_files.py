"""What a run leaves in its files."""

import csv
import functools
import io
import json
from dataclasses import replace
from datetime import datetime

import pytest

from tests.planning.fakes import SETTINGS, STUDY, declarations
from trainscout.planning.answer import answer_cell
from trainscout.planning.fabric_cost import FabricCost
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import run_study
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Target
from trainscout.reports.capacity.files import last_record, new_directory, save_run
from trainscout.reports.capacity.study_files import search_command, study_csv, study_record
from trainscout.reports.capacity.study_tables import fabrics_table
from trainscout.reports.nothing_found import why_nothing_fits
from trainscout.simulators.predictor.network.topology.parts import Parts

SEARCH = functools.partial(answer_cell, settings=SETTINGS, why_nothing=why_nothing_fits)
GROUPS = {"space": "megatron", "search": "exact"}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    study = replace(STUDY, clusters=("here", "there"), targets={"fits": Target()})
    store = AnswerStore(tmp_path_factory.mktemp("cells"), SETTINGS)
    return run_study(
        study,
        declarations(),
        Reliability(gpu_mtbf_hours=1e5, checkpoint_write_s=30.0, restart_s=60.0),
        store,
        SEARCH,
        n_jobs=1,
        on_progress=lambda _: None,
    )


@pytest.fixture(scope="module")
def record(outcome):
    return study_record(outcome, started="today", commit=None, groups=GROUPS)


def test_the_record_is_json_and_names_the_answer(record, outcome):
    assert json.loads(json.dumps(record, allow_nan=False))["name"] == "toy"
    (model,) = record["models"]
    cells = {cell["key"]: cell for cell in record["cells"]}
    answer = cells[model["answer"]]
    assert answer["pareto"]
    assert answer["targets_met"] == ["fits"]
    assert answer["usd"] == min(cell["usd"] for cell in cells.values())
    assert answer["gpu_hours"] == pytest.approx(answer["days"] * 24 * answer["num_gpus"])
    assert answer["recipe"]["tp"] == outcome.models[0].chosen.best.recipe.tp


def test_what_a_fabric_is_built_of_is_in_the_record_and_its_table(outcome):
    (model,) = outcome.models
    bought = Parts(64, 8, 4, 2, 160, 96, nic_gbps=1.0, port_gbps=2.0, cable_gbps=3.0)
    cost = FabricCost(model.chosen, bought, 5e5, 0.0, 0.0, None, recipe_changed=False)
    played = replace(outcome, models=(replace(model, fabrics=(cost,)),))
    record = study_record(played, started="today", commit=None, groups=GROUPS)
    cells = {cell["key"]: cell for cell in record["cells"]}
    (row,) = fabrics_table(record["models"][0], cells).rows
    assert tuple(row.cells[2:4]) == ("14", "96")


def test_a_cell_names_the_command_that_searches_it_alone(record):
    words = record["cells"][0]["command"].split()
    assert words[:2] == ["trainscout", "optimize"]
    assert {"model=small", "cluster=here", "cluster.num_nodes=1", "space=megatron"} <= set(words)


def test_a_gpu_in_another_cluster_is_named_in_the_command(outcome):
    cell = replace(outcome.results[0].cell, cluster="h200@h100_512")
    command = search_command(cell, {}, {})
    assert "cluster=h100_512 gpu=h200" in command


def test_a_command_gives_no_price_that_the_study_did_not(outcome):
    cell = outcome.results[0].cell
    gpu = cell.question.gpu
    assert "price" not in search_command(cell, {}, {"another": 1.0})
    given = search_command(cell, {}, {gpu.name: gpu.price_usd_per_hour})
    assert given.endswith(f" gpu.price_usd_per_hour={gpu.price_usd_per_hour}")


def test_one_row_a_cell(record):
    rows = list(csv.DictReader(io.StringIO(study_csv(record))))
    assert len(rows) == len(record["cells"])
    for row, cell in zip(rows, record["cells"], strict=True):
        assert float(row["days"]) == cell["days"]
        assert row["days_low"] == ""  # the fake gives no error bars
        assert float(row["breakdown_s.compute"]) == cell["breakdown_s"]["compute"]


def test_runs_of_one_second_have_directories_of_their_own(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    names = [new_directory(tmp_path, now).name for _ in range(3)]
    assert names == ["2026-01-02_03-04-05", "2026-01-02_03-04-05-2", "2026-01-02_03-04-05-3"]


def test_the_last_finished_run_is_the_one_to_compare_with(tmp_path):
    assert last_record(tmp_path, "ours") is None
    first = new_directory(tmp_path, datetime(2026, 1, 1))
    save_run(first, {"format": 1, "name": "ours", "run": 1}, {"report.txt": "hello\n"})
    assert (first / "report.txt").read_text() == "hello\n"
    new_directory(tmp_path, datetime(2026, 1, 2))  # stopped before its record was written
    broken = new_directory(tmp_path, datetime(2026, 1, 3))
    (broken / "study.json").write_text("{")
    foreign = tmp_path / "cells"
    foreign.mkdir()
    (foreign / "study.json").write_text('{"format": 1, "name": "ours", "run": "foreign"}')
    other = new_directory(tmp_path, datetime(2026, 1, 4))
    save_run(other, {"format": 1, "name": "theirs", "run": 2}, {})
    assert last_record(tmp_path, "ours") == {"format": 1, "name": "ours", "run": 1}
    assert last_record(tmp_path, "theirs")["run"] == 2
