from dataclasses import replace

import pytest

from tests.in_process import command
from tests.simulators.laboratory.published.runs import (
    RUN,
    TwoSeconds,
    cells,
    declarations,
    write_table,
)
from trainscout.simulators.laboratory.fastest import fastest_runs
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.uncertainty.fastest import read_fastest

main = command("fastest")


def found(*rows):
    return fastest_runs(replay_rows(rows, declarations(), TwoSeconds(), lambda: None))


def test_the_fastest_of_a_kind_is_kept():
    faster = replace(RUN, id="faster", tp=4, dp=8, measured_iter_s=3.0)
    other = replace(RUN, id="other", dtype="fp8", measured_iter_s=2.0)
    assert {run.id for run in found(RUN, faster, other)} == {"faster", "other"}


def test_utilisation_is_of_what_was_measured():
    (result,) = replay_rows([RUN], declarations(), TwoSeconds(), lambda: None)
    (run,) = fastest_runs([result])
    assert result.job is not None
    peak = result.job.gpu.peak("bf16")
    assert run.mfu == pytest.approx(step_flops(result.job).model / (4.0 * 64 * peak))


def test_the_command_writes_what_searches_read(tmp_path, capsys):
    rows = [
        cells(num_layers=8),
        cells(id="tp4", num_layers=8, tp=4, dp=8, measured_iter_s=3.0),
        cells(id="headline", quality="C", num_layers=16),
    ]
    output = tmp_path / "fastest.csv"
    assert main([str(write_table(tmp_path / "runs.csv", *rows)), "--output", str(output)]) == 0
    written = read_fastest(output.read_text())
    assert [run.id for run in written.runs] == ["tp4"]
    assert (written.selection.publications, written.selection.sweeps) == (1, 1)
    assert "Choosing costs" in capsys.readouterr().out


def test_a_table_without_steps_is_a_failure(tmp_path):
    table = write_table(tmp_path / "runs.csv", cells(gpu="MI250X"))
    assert main([str(table), "--output", str(tmp_path / "fastest.csv")]) == 1
    assert not (tmp_path / "fastest.csv").exists()
