"""Files that grow row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.simulators.laboratory.device.results import ResultFile
from trainscout.simulators.predictor.question.errors import InputError

COLUMNS, KEY = ("name", "size", "time_us"), ("name", "size")


def test_rows_are_there_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "times.csv"
    first = ResultFile(path, COLUMNS, KEY)
    first.append({"name": "a", "size": 3, "time_us": 1.5})
    again = ResultFile(path, COLUMNS, KEY)
    assert {"name": "a", "size": 3} in again
    assert {"name": "a", "size": 4} not in again
    assert path.read_text() == "name,size,time_us\na,3,1.5\n"


def test_a_row_cut_short_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("name,size,time_us\na,3,1.5\nb,4")
    file = ResultFile(path, COLUMNS, KEY)
    assert {"name": "a", "size": 3} in file
    assert {"name": "b", "size": 4} not in file
    file.append({"name": "b", "size": 4, "time_us": 2.0})
    assert path.read_text().splitlines() == ["name,size,time_us", "a,3,1.5", "b,4,2.0"]


def test_another_table_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("something,else\n")
    with pytest.raises(InputError, match="other columns"):
        ResultFile(path, COLUMNS, KEY)
    assert path.read_text() == "something,else\n"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--output"):
        ResultFile(tmp_path / "file" / "times.csv", COLUMNS, KEY)
