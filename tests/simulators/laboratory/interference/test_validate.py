"""The physical model against measured tables, beside one factor for everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.in_process import command
from tests.simulators.laboratory.interference.made_slowdowns import write_table
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.interference import validate
from trainscout.simulators.laboratory.interference.slowdown_rows import read_samples
from trainscout.simulators.predictor.io.yaml_files import read_yaml

main = command("interference", "validate")

GPUS = load_catalogue().gpus


def slower_streaming(kernel_class: str, physical: float) -> float:
    return physical * (1.4 if kernel_class == "elementwise" else 1.0)


def test_what_the_model_misses_stands_under_its_class(tmp_path: Path) -> None:
    table, output = write_table(tmp_path / "table.csv", slower_streaming), tmp_path / "errors.yaml"
    assert main([str(table), "--output", str(output)]) == 0
    groups = yaml.safe_load(output.read_text())["residuals"]
    exact = groups["class gemm"]["physical"]
    assert exact["within_5_10_15_percent"] == [1.0, 1.0, 1.0]
    assert exact["rmse"] == pytest.approx(0.0, abs=1e-12)
    missed = groups["class streaming"]["physical"]
    assert missed["within_5_10_15_percent"] == [0.0, 0.0, 0.0]
    assert missed["median_abs_error"] == pytest.approx(1 - 1 / 1.4, abs=1e-3)
    assert groups["all"]["n"] == groups["class gemm"]["n"] + groups["class streaming"]["n"]


def test_the_one_factor_is_that_of_the_other_sources(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", lambda kernel_class, physical: physical)
    samples = read_samples([table], GPUS)
    # Slowdowns differ by source only: seeing others says nothing about the one left out.
    by_source = replace(samples, slowdown=1.0 + 0.5 * samples.group)
    assert not np.isclose(validate.one_factor(by_source), by_source.slowdown).any()


def test_long_kernels_weigh_by_their_time(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", lambda kernel_class, physical: physical)
    samples = read_samples([table], GPUS)
    n = len(samples.slowdown)
    everything = np.ones(n, dtype=np.bool_)
    time_us, slowdown = np.full(n, np.nan), np.linspace(1.0, 2.0, n)
    time_us[:2] = 10.0, 30.0
    timed = replace(samples, time_us=time_us)
    expected = pytest.approx((10.0 * slowdown[0] + 30.0 * slowdown[1]) / 40.0, abs=1e-3)
    assert validate.weighted_by_time(timed, slowdown, everything) == expected
    assert validate.score(timed, slowdown, everything)["by_time"] == expected
    everything[:2] = False
    assert validate.weighted_by_time(timed, slowdown, everything) is None


def test_the_recorded_errors_say_what_they_were_found_on() -> None:
    content = read_yaml(Path(validate.__file__).with_name("overlap_errors.yaml"))
    assert content["residuals"]["all"]["n"] == sum(content["sources"].values())


def test_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err
