from dataclasses import replace

import pytest

from reports.validation.published import PUBLISHED_RUNS
from reports.validation.rows import MEASUREMENTS, read_rows
from simulators.errors import InputError
from tests.reports.validation.runs import RUN, cells, write_table


def test_a_row_is_read_as_written(tmp_path):
    assert read_rows(write_table(tmp_path / "runs.csv", cells())) == (RUN,)


def test_blank_cells_and_missing_columns_are_unpublished(tmp_path):
    given = cells(recompute="", micro_batch="")
    del given["num_query_groups"]
    (row,) = read_rows(write_table(tmp_path / "runs.csv", given))
    assert row == replace(RUN, recompute="", micro_batch=None, num_query_groups=None)


def test_columns_of_the_readers_own_are_left_alone(tmp_path):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(weather="sunny")))
    assert row == RUN


@pytest.mark.parametrize("missing", ["id", "gpu", "hidden", "seq_len"])
def test_a_column_that_every_row_needs(tmp_path, missing):
    given = cells()
    del given[missing]
    with pytest.raises(InputError, match=missing):
        read_rows(write_table(tmp_path / "runs.csv", given))


def test_a_table_without_measurements_is_refused(tmp_path):
    given = {name: value for name, value in cells().items() if name not in MEASUREMENTS}
    with pytest.raises(InputError, match="no column with a measurement"):
        read_rows(write_table(tmp_path / "runs.csv", given))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("num_gpus", "many"),
        ("num_gpus", "2.5"),
        ("tp", "0"),
        ("measured_iter_s", "-1"),
        ("measured_iter_s", "nan"),
        ("measured_iter_s", "inf"),
        ("quality", "excellent"),
        ("gpu", ""),
    ],
)
def test_a_cell_that_cannot_be_meant(tmp_path, column, value):
    with pytest.raises(InputError, match=column):
        read_rows(write_table(tmp_path / "runs.csv", cells(**{column: value})))


def test_no_two_rows_of_one_name(tmp_path):
    with pytest.raises(InputError, match="appears twice"):
        read_rows(write_table(tmp_path / "runs.csv", cells(), cells()))


@pytest.mark.parametrize("text", ["", "id,gpu\n", "\x00\x01", "id,gpu,num_layers\na,b\n"])
def test_what_is_no_table_of_runs(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError):
        read_rows(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a CSV file"):
        read_rows(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "nothing.csv")


def test_the_published_rows_have_sources():
    rows = read_rows(PUBLISHED_RUNS)
    assert len(rows) > 1700
    assert all(row.source for row in rows)
