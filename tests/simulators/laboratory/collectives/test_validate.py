"""The report: its shape, its figures, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.in_process import command
from tests.simulators.laboratory.collectives.test_measurements import row
from tests.simulators.predictor.collectives.machines import KIB, MIB
from trainscout.simulators.laboratory.collectives import validate
from trainscout.simulators.laboratory.collectives.measurements import Skipped, describe, size_band

run = command("collectives", "validate")

SIX = {"n", "skipped", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias"}


def test_cells_count_alike_whatever_their_rows() -> None:
    cells = [(("a", "x"), 0.1)] * 9 + [(("b", "x"), -0.3)]
    assert validate.mean_of_medians(cells) == pytest.approx(0.2)
    assert validate.mean_of_medians([]) is None


@pytest.mark.parametrize(
    ("size", "band"),
    [
        (16 * KIB, "<=16KiB"),
        (16 * KIB + 1, "16-256KiB"),
        (4 * MIB, "256KiB-4MiB"),
        (64 * MIB + 1, ">64MiB"),
    ],
)
def test_bands(size: int, band: str) -> None:
    assert size_band(size) == band


def test_report_has_every_part() -> None:
    kinds = ("all_reduce", "alltoall", "sendrecv")
    outcomes = [
        validate.predict(describe(str(number), row(collective=kind)))
        for number, kind in enumerate(kinds)
    ]
    found = validate.report(outcomes, [Skipped("9", "because")])
    assert set(found["overall"]) == SIX
    assert found["overall"]["n"] == 3
    assert found["overall"]["skipped"] == 1
    for title in validate.GROUPS:
        assert sum(each["n"] for each in found[title].values()) == 3
        assert all(set(each) == SIX for each in found[title].values())
    assert set(found["by_collective"]) == {"all_reduce", "all_to_all", "send_recv"}
    # NCCL's own model prices neither all-to-all nor sends.
    assert found["nccl_model"]["overall"]["n"] == 1
    assert found["skipped"] == [{"id": "9", "reason": "because"}]
    for each in found["rows"]:
        assert each["error"] == pytest.approx(each["predicted"] / each["measured"] - 1)
        assert each["assumptions"]


def test_a_forced_algorithm_is_predicted() -> None:
    forced = validate.predict(describe("1", row(algo="Ring", bytes=str(16 * MIB))))
    free = validate.predict(describe("1", row(bytes=str(16 * MIB))))
    assert (forced.price.algorithm, free.price.algorithm) == ("ring", "nvls_tree")
    assert forced.assumptions == free.assumptions
    refused = validate.predict(describe("1", row(algo="Butterfly", bytes=str(16 * MIB))))
    assert refused.price == free.price
    assert "algorithm Butterfly is not known: NCCL's own choice is priced" in refused.assumptions
    sharp = validate.predict(describe("1", row(algo="CollNetDirect", bytes=str(16 * MIB))))
    assert "collnet_direct cannot run here: nvls_tree is priced" in sharp.assumptions


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(",".join(row()) + "\n" + ",".join(row().values()) + "\n")
    return path


def test_command_writes_the_report(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.with_suffix(".json")
    assert run([str(table), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    # Two H100 nodes on InfiniBand at 1 MiB are among the fitted clusters.
    assert found["overall"]["median_abs_error"] < 0.25
    assert "1 rows, 0 skipped" in capsys.readouterr().out


def test_command_refuses_a_bad_table(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(",".join(row()) + "\n")
    out = table.with_suffix(".json")
    assert run([str(table), "--json", str(out)]) == 2
    assert capsys.readouterr().err == f"error: table={table}: has a header and no rows\n"
    assert not out.exists()


def test_command_writes_neither_over_its_table_nor_where_it_cannot(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table.read_text()
    for out, stated in ((table, "is the same file as"), (table / "out.json", "error: --json=")):
        assert run([str(table), "--json", str(out)]) == 2
        assert stated in capsys.readouterr().err
    assert table.read_text() == before
