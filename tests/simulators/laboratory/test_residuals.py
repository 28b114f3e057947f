import csv
import math
from dataclasses import replace

import pytest

from tests.in_process import command
from tests.simulators.jobs import make_job
from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.laboratory.residuals import Bare, residuals_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.table import read_table

main = command("residuals")


def found(*rows):
    return residuals_of(replay_rows(rows, declarations(), TwoSeconds(), lambda: None))


def test_a_residual_is_measured_over_predicted():
    (residual,) = found(RUN)
    assert RUN.measured_iter_s is not None
    assert residual.log_residual == pytest.approx(math.log(RUN.measured_iter_s / 2.0))
    assert residual.id == RUN.id
    assert residual.features.num_gpus == RUN.num_gpus


def test_only_trusted_measured_runs_count():
    rows = [
        replace(RUN, id="headline", quality="C"),
        replace(RUN, id="unmeasured", measured_iter_s=None),
        replace(RUN, id="kept"),
    ]
    assert [residual.id for residual in found(*rows)] == ["kept"]


def test_runs_of_the_same_work_are_a_sweep():
    other = replace(RUN, id="other", global_batch=2 * (RUN.global_batch or 1))
    faster = replace(RUN, id="layout", measured_iter_s=3.0)
    sweeps = {residual.id: residual.sweep for residual in found(RUN, other, faster)}
    assert sweeps[RUN.id] == sweeps["layout"] != sweeps["other"]


def test_residuals_are_made_without_error_bars():
    job = make_job(tp=2)
    assert Bare().simulate(job).interval_s is None
    assert Bare().simulate(job) == replace(ReplaySimulator().simulate(job), interval_s=None)


@pytest.fixture
def some_runs(tmp_path):
    """Fifteen runs of each of four publications."""
    path = tmp_path / "runs.csv"
    with PUBLISHED_RUNS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [
        row
        for prefix in ("vtrain_m", "bloom", "dgxc", "simumax")
        for row in [each for each in rows if each["id"].startswith(prefix)][:15]
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(kept)
    return path


def test_the_command_writes_a_table_that_says_where_it_is_from(some_runs, tmp_path, capsys):
    output = tmp_path / "residuals.csv"
    assert main([str(some_runs), "--output", str(output)]) == 0
    text = output.read_text()
    assert "# made_by: trainscout residuals" in text
    assert "# runs: runs.csv, sha256" in text
    table = read_table(text)
    assert len(table.source_names) == 4
    assert "of a publication left out" in capsys.readouterr().out
    again = tmp_path / "again.csv"
    assert main([str(some_runs), "--output", str(again)]) == 0
    assert again.read_text() == text


def test_too_few_runs_are_refused(some_runs, tmp_path, capsys):
    lines = some_runs.read_text().splitlines(keepends=True)
    some_runs.write_text("".join(lines[:10]))
    output = tmp_path / "residuals.csv"
    assert main([str(some_runs), "--output", str(output)]) == 2
    assert "usable runs of 1 sources" in capsys.readouterr().err
    assert not output.exists()
