"""Measured kernels of several sources are kept in one file that says where each came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.in_process import command
from trainscout.simulators.predictor.kernels.measured import load_measured

listing, add, export = (command("kernels", name) for name in ("list", "add", "export"))
HEADER = "gpu,dtype,m,n,k,batch,layout,time_us,source\n"
OURS = (
    HEADER + "H100 SXM5,bf16,4096,4096,4096,1,TN,250,ours\nA100 80GB,bf16,64,64,64,1,TN,5,ours\n"
)
THEIRS = HEADER + "H100 SXM5,bf16,4096,4096,4096,1,TN,240,theirs\nH100,bf16,0,1,1,1,TN,1,theirs\n"


@pytest.fixture
def tables(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "ours.csv", tmp_path / "theirs.csv"]
    for path, text in zip(found, (OURS, THEIRS), strict=True):
        path.write_text(text)
    return found


def test_every_row_says_where_it_came_from(
    tables: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "db.json"
    assert add([*tables, "--to", database]) == 0
    assert "4 gemm" in capsys.readouterr().out
    assert add([*tables, "--to", database]) == 0
    assert "0 gemm" in capsys.readouterr().out
    assert listing([database, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == [
        {"gpu": "a100_80", "class": "gemm", "source": "ours", "file": "ours.csv",
         "rows": 1, "usable": 1, "hot": 0},
        {"gpu": "h100", "class": "gemm", "source": "ours", "file": "ours.csv",
         "rows": 1, "usable": 1, "hot": 0},
        {"gpu": "h100", "class": "gemm", "source": "theirs", "file": "theirs.csv",
         "rows": 2, "usable": 1, "hot": 0},
    ]  # fmt: skip
    assert listing([database]) == 0
    assert "theirs.csv" in capsys.readouterr().out
    assert len(load_measured(database).rows[0][1]) == 4


def test_one_gpus_rows_are_exported_and_read_again(tables: list[Path], tmp_path: Path) -> None:
    database, folder = tmp_path / "db.json", tmp_path / "out"
    assert add([*tables, "--to", database]) == 0
    assert export([database, "--output", folder, "--gpu", "h100"]) == 0
    (path,) = folder.iterdir()
    assert len(load_measured(folder).rows[0][1]) == 3
    again = tmp_path / "again.json"
    assert add([path, "--to", again]) == 0
    rows = json.loads(again.read_text())["kernels"]["gemm"]
    assert [row["came_from"] for row in rows] == ["ours.csv", "theirs.csv", "theirs.csv"]


def test_what_is_no_database_or_table_is_refused(
    tables: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "db.json"
    assert add([*tables, "--to", database]) == 0
    assert export([database, "--output", tmp_path / "out", "--gpu", "b200"]) == 2
    assert "holds no kernels of b200" in capsys.readouterr().err
    assert export([tables[0], "--output", tmp_path / "out"]) == 2
    assert not (tmp_path / "out").exists()
    assert add([tables[0], "--to", tables[0]]) == 2
    assert "would be lost" in capsys.readouterr().err
    (tmp_path / "rates.csv").write_text("gpu,benchmark,bytes,gbps\nh100,copy,1,1\n")
    assert add([tmp_path / "rates.csv", "--to", tmp_path / "new.json"]) == 2
    assert not (tmp_path / "new.json").exists()
