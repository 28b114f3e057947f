import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.laboratory.published.runs import RUN, cells, declarations, write_table
from trainscout.simulators.laboratory.published.cells import CellError, number_in
from trainscout.simulators.laboratory.published.jobs import job_of
from trainscout.simulators.laboratory.published.outcome import NotReplayable
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.rows import MEASUREMENTS, read_rows
from trainscout.simulators.predictor.question.errors import InputError


def test_a_row_is_read_as_written(tmp_path):
    assert read_rows(write_table(tmp_path / "runs.csv", cells())) == (RUN,)


def test_blank_cells_and_missing_columns_are_unpublished(tmp_path):
    known = cells(recompute="", micro_batch="")
    del known["num_query_groups"]
    (row,) = read_rows(write_table(tmp_path / "runs.csv", known))
    assert row == replace(RUN, recompute="", micro_batch=None, num_query_groups=None)


def test_columns_of_the_readers_own_are_left_alone(tmp_path):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(weather="sunny")))
    assert row == RUN


@pytest.mark.parametrize("missing", ["id", "gpu", "hidden", "seq_len"])
def test_a_column_that_every_row_needs(tmp_path, missing):
    known = cells()
    del known[missing]
    with pytest.raises(InputError, match=missing):
        read_rows(write_table(tmp_path / "runs.csv", known))


def test_a_table_without_measurements_is_refused(tmp_path):
    known = {name: value for name, value in cells().items() if name not in MEASUREMENTS}
    with pytest.raises(InputError, match="no column with a measurement"):
        read_rows(write_table(tmp_path / "runs.csv", known))


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("num_gpus", "many", "whole number"),
        ("num_gpus", "2.5", "whole number"),
        ("tp", "0", "from 1"),
        ("tp", "1_0", "not usable"),
        ("measured_iter_s", "0", "not usable"),
        ("measured_iter_s", "-8", "not usable"),
        ("measured_iter_s", "inf", "not usable"),
        ("measured_iter_s", "8,500", "thousands separator"),
        ("measured_mfu", "0.45", "percent, not a fraction"),
        ("measured_mfu", "145", "percent"),
        ("sp", "2", "not a switch"),
        ("quality", "Z", "not a grade"),
        ("gpu", "", "blank"),
        ("num_layers", "1e300", "to 1000"),
        ("hidden", "1e12", "to 1e+06"),
    ],
)
def test_a_cell_that_cannot_be_meant_costs_its_row_alone(tmp_path, column, value, why):
    table = write_table(tmp_path / "runs.csv", cells(id="bad", **{column: value}), cells())
    bad, good = read_rows(table)
    assert good == RUN
    assert bad.id == "bad"
    assert bad.fault.startswith("line 2: ")
    assert column in bad.fault
    assert value in bad.fault
    assert why in bad.fault
    outcome = job_of(bad, declarations())
    assert outcome == NotReplayable(bad.fault)


def test_every_bad_cell_of_a_row_is_named(tmp_path):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(tp="x", pp="y")))
    assert "tp=x" in row.fault
    assert "pp=y" in row.fault


@pytest.mark.parametrize("blank", ["", " ", "NA", "n/a", "nan", "None", "-", "null"])
def test_ways_to_write_nothing(tmp_path, blank):
    table = write_table(
        tmp_path / "runs.csv", cells(micro_batch=blank, sp=blank, num_experts=blank)
    )
    assert read_rows(table) == (replace(RUN, micro_batch=None, sp=None),)


def test_none_is_an_answer_where_words_are_meant(tmp_path):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(recompute="None", notes="nan")))
    assert (row.recompute, row.notes) == ("None", "")


def test_zero_of_something_is_none_of_it(tmp_path):
    zeros = cells(num_experts=0, topk=0, moe_ffn_hidden=0, etp=0, ep=0, cp="0", vpp="0.0")
    assert read_rows(write_table(tmp_path / "runs.csv", zeros)) == (replace(RUN, ep=1),)


@pytest.mark.parametrize(("word", "value"), [("true", 1), ("True", 1), ("FALSE", 0), ("1.0", 1)])
def test_switches_in_words(tmp_path, word, value):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(sp=word)))
    assert row == replace(RUN, sp=value)


def test_lines_without_content_do_not_count(tmp_path):
    path = write_table(tmp_path / "runs.csv", cells())
    width = path.read_text().splitlines()[0].count(",")
    path.write_text(f"\n{path.read_text()}\n{',' * width}\n , ,\n")
    assert read_rows(path) == (RUN,)


def test_a_row_with_too_few_cells_is_at_fault(tmp_path):
    path = write_table(tmp_path / "runs.csv", cells())
    path.write_text(path.read_text() + "short,h100\n")
    good, short = read_rows(path)
    assert good == RUN
    assert short.id == "short"
    assert "line 3: 2 cells under a header of" in short.fault


def test_of_two_rows_of_one_name_the_first_counts(tmp_path):
    first, second = read_rows(write_table(tmp_path / "runs.csv", cells(), cells()))
    assert first == RUN
    assert "appears twice" in second.fault


HEADER = "id,gpu,num_layers,hidden,num_heads,seq_len,measured_iter_s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n , \n", "is empty"),
        ("id,gpu\n", "num_layers, hidden, num_heads, seq_len: is missing"),
        ("\x00\x01", "no header row"),
        ("run1,h100,32,4096\n", "no header row; found: run1, h100, 32, 4096"),
        (f"{HEADER}\n".replace(",", ";"), "separated by ';'"),
        (f"{HEADER}\n".replace(",", "\t"), "separated by a tab"),
        (f"{HEADER},gpu\n", "gpu: is a column that is there twice"),
        (f"{HEADER}\n", "has no rows"),
    ],
)
def test_what_is_no_table_of_runs(tmp_path, text, said):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(said)):
        read_rows(path)


@given(st.text(max_size=12), st.sampled_from(["tp", "hidden", "sp", "measured_mfu", "params_b"]))
def test_no_text_gets_past_as_a_number_that_is_none(text, column):
    try:
        value = number_in(column, text, whole=column in ("tp", "hidden", "sp"))
    except CellError:
        return
    assert value is None or 0 <= value <= 1e15


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
