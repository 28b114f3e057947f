import csv
import math
from dataclasses import replace

import pytest

from tests.in_process import command
from tests.simulators.jobs import make_job
from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations
from trainscout.simulators.laboratory import residuals
from trainscout.simulators.laboratory.published.page.later import Blind
from trainscout.simulators.laboratory.published.published import (
    BLIND_TESTS,
    PUBLISHED_RUNS,
    stored_coverage,
)
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.laboratory.residuals import Bare, residuals_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.table import read_table

main = command("residuals")


def found(*rows, **blind):
    return residuals_of(replay_rows(rows, declarations(), TwoSeconds(), lambda: None), **blind)


def test_a_residual_is_measured_over_predicted():
    (residual,) = found(RUN)
    assert RUN.measured_iter_s is not None
    assert residual.log_residual == pytest.approx(math.log(RUN.measured_iter_s / 2.0))
    assert residual.id == RUN.id
    assert residual.features.num_gpus == RUN.num_gpus


def test_of_a_blind_test_what_was_predicted_first_counts():
    refused = replace(RUN, id="refused")
    first = {RUN.id: Blind(False, (4.0, 3.0, 5.0)), "refused": Blind(True, None)}
    (residual,) = found(RUN, refused, blind_test=3, first=first)
    assert residual.blind_test == 3
    assert residual.log_residual == pytest.approx(math.log(RUN.measured_iter_s / 4.0))
    # Its features are those of what is predicted now.
    assert residual.features == found(RUN)[0].features


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


def _kept(path, source, *prefixes):
    """Five rows of each of some publications in a file of their own."""
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for prefix in prefixes:
            writer.writerows([row for row in rows if row["id"].startswith(prefix)][:5])
    return path


def test_the_command_writes_a_table_that_says_where_it_is_from(tmp_path, capsys, monkeypatch):
    runs = _kept(tmp_path / "runs.csv", PUBLISHED_RUNS, "vtrain_m", "bloom", "dgxc", "simumax")
    monkeypatch.setattr(residuals, "PUBLISHED_RUNS", runs)
    test = BLIND_TESTS[9]
    blind = replace(test, runs=_kept(tmp_path / "blind.csv", test.runs, "twist", "mi355", "ddfd"))
    monkeypatch.setattr(residuals, "BLIND_TESTS", [blind])
    output = tmp_path / "residuals.csv"
    assert main(["--output", str(output)]) == 0
    text = output.read_text()
    assert "# made_by: trainscout residuals" in text
    assert "# runs: runs.csv, sha256" in text
    table = read_table(text)
    assert table.sources.max() + 1 == 4 + 3
    assert sorted(set(table.blind_tests.tolist())) == [0, 1]
    assert stored_coverage(output)["n"] == 15
    assert "15 runs of blind tests in 3 publications" in capsys.readouterr().out
    again = tmp_path / "again.csv"
    assert main(["--output", str(again)]) == 0
    assert again.read_text() == text
