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
    assert set(found["by_transport"]) == {"infiniband"}
    assert all(
        name.split(", ")[1] == size_band(outcomes[0].measurement.size_bytes)
        for name in found["by_cluster_and_size_band"]
    )
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


def test_command_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "table.csv", tmp_path / "out.json"
    table.write_text(",".join(row()) + "\n" + ",".join(row().values()) + "\n")
    assert run([str(table), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    # Two H100 nodes on InfiniBand at 1 MiB are among the fitted clusters.
    assert found["overall"]["median_abs_error"] < 0.25
    assert "1 rows, 0 skipped" in capsys.readouterr().out


def test_command_refuses_a_bad_table(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run([str(tmp_path / "none.csv"), "--json", str(out)]) == 2
    assert not out.exists()


def test_command_refuses_a_table_without_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "table.csv", tmp_path / "out.json"
    table.write_text(",".join(row()) + "\n")
    assert run([str(table), "--json", str(out)]) == 2
    assert capsys.readouterr().err == f"error: table={table}: has a header and no rows\n"
    assert not out.exists()


def test_command_does_not_write_over_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(",".join(row()) + "\n" + ",".join(row().values()) + "\n")
    before = table.read_text()
    assert run([str(table), "--json", str(table)]) == 2
    assert "is the same file as" in capsys.readouterr().err
    assert table.read_text() == before


def test_command_refuses_a_place_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(",".join(row()) + "\n" + ",".join(row().values()) + "\n")
    assert run([str(table), "--json", str(tmp_path / "no" / "out.json")]) == 2
    assert capsys.readouterr().err.startswith("error: --json=")
