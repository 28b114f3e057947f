import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.laboratory.published.runs import RUN, cells, declarations, write_table
from trainscout.simulators.laboratory.published.jobs.jobs import job_of
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.reading.cells import CellError, number_in
from trainscout.simulators.laboratory.published.reading.rows import (
    MEASUREMENTS,
    read_rows,
    unread_columns,
)
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


def test_columns_that_nothing_reads_are_named_with_the_nearest_that_is_missing(tmp_path):
    known = cells(weather="sunny")
    known["Glob Batch"] = known.pop("global_batch")
    path = write_table(tmp_path / "runs.csv", known)
    assert unread_columns(path) == ("weather", "Glob Batch (nearest: global_batch)")
    assert unread_columns(write_table(path, cells())) == ()


def test_columns_are_known_in_capitals_and_with_blanks(tmp_path):
    path = write_table(tmp_path / "runs.csv", cells())
    header, _, rest = path.read_text().partition("\n")
    path.write_text(f"{header.replace('_', ' ').title()}\n{rest}")
    assert read_rows(path) == (RUN,)


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


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("num_gpus", "64 GPUs", 64),
        ("num_gpus", "8xH100", 8),
        ("num_gpus", "4 nodes x 8 A100-SXM4-80GB", 32),
        ("gpus_per_node", "8 per node", 8),
        ("seq_len", "4k", 4096),
        ("seq_len", "128K tokens", 131072),
        ("tp", "TP=4", 4),
        ("tp", "4-way tensor parallel", 4),
        ("pp", "pp2", 2),
        ("vpp", "VPP 3", 3),
        ("micro_batch", "mbs 2", 2),
        ("micro_batch", "2 sequences", 2),
        ("global_batch", "GBS=512", 512),
        ("global_batch", "1.92k", 1920),
        ("num_query_groups", "8 KV heads", 8),
        ("topk", "top-2", 2),
        ("vocab", "32k", 32000),
        ("params_b", "7B", 7),
        ("params_b", "560M params", 0.56),
        ("measured_iter_s", "3.2 s/it", 3.2),
        ("measured_iter_s", "350 ms", 0.35),
        ("measured_iter_s", "~2 it/s", 0.5),
        ("measured_tokens_per_s_per_gpu", "3.2k tokens/s/GPU", 3200),
        ("measured_tokens_per_s_per_gpu", "3200 tok/gpu/s", 3200),
        ("measured_tflops_per_gpu", "400 TFLOP/s/GPU", 400),
        ("measured_tflops_per_gpu", "0.4 PFLOPS", 400),
        ("measured_mfu", "40 %", 40),
        ("measured_peak_mem_gib", "75 GB", 75e9 / 2**30),
        ("measured_peak_mem_gib", "72000 MiB", 72000 / 1024),
        ("inter_link_gbps_per_gpu", "50 GB/s", 400),
        ("inter_link_gbps_per_gpu", "400Gbps", 400),
    ],
)
def test_numbers_as_people_write_them(tmp_path, column, text, value):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(**{column: text})))
    assert row.fault == ""
    assert getattr(row, column) == pytest.approx(value)
    assert row.readings == f"{column}={text} is {value:.6g}"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("num_gpus", "2 nodes"),
        ("tp", "4/2"),
        ("tp", "PP=4"),
        ("micro_batch", "1-2"),
        ("micro_batch", "GBS 512"),
        ("measured_iter_s", "3.2 days"),
        ("measured_iter_s", "3.2±0.1"),
        ("measured_tokens_per_s_per_gpu", "3200 tokens/day"),
        ("measured_mfu", "HFU 40%"),
        ("measured_mfu", "0.4%"),
        ("measured_peak_mem_gib", "90%"),
        ("inter_link_gbps_per_gpu", "8x400 Gb/s"),
    ],
)
def test_numbers_of_something_else_are_not_read(tmp_path, column, text):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(**{column: text})))
    assert f"{column}={text} is not usable" in row.fault


@pytest.mark.parametrize(
    ("text", "sequences"),
    [("4M tokens", 2048), ("3145728 tokens", 1536), ("512k toks", 256), ("2.048M tokens", 1000)],
)
def test_batches_in_tokens(tmp_path, text, sequences):
    # The batch's column stands before that of the length.
    known = {"global_batch": text, **cells(seq_len=2048)} | {"global_batch": text}
    (row,) = read_rows(write_table(tmp_path / "runs.csv", known))
    assert row.global_batch == sequences
    assert row.readings == f"global_batch={text} is {sequences}"


@pytest.mark.parametrize(
    ("text", "length", "why"),
    [
        ("4.19M tokens", 2048, "is no whole number of sequences of 2048 tokens"),
        ("4M tokens", "", "sequences, where seq_len is not known"),
    ],
)
def test_tokens_that_are_no_batch(tmp_path, text, length, why):
    known = cells(global_batch=text, seq_len=length)
    (row,) = read_rows(write_table(tmp_path / "runs.csv", known))
    assert f"global_batch={text}" in row.fault
    assert why in row.fault


def test_what_a_cell_was_read_as_is_told(tmp_path):
    (row,) = read_rows(write_table(tmp_path / "runs.csv", cells(seq_len="2k")))
    assert "cells read as: seq_len=2k is 2048" in job_of(row, declarations()).assumptions


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


@pytest.mark.parametrize(
    ("word", "value"), [("true", 1), ("True", 1), ("FALSE", 0), ("1.0", 1), ("on", 1)]
)
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
    ("text", "statement"),
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
def test_what_is_no_table_of_runs(tmp_path, text, statement):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(statement)):
        read_rows(path)


@given(
    st.text(max_size=12) | st.text("0123456789.,kKmMGBsx/=~ tpTFLOP%", max_size=12),
    st.sampled_from(["tp", "hidden", "sp", "measured_mfu", "params_b"]),
)
def test_no_text_gets_past_as_a_number_that_is_none(text, column):
    try:
        value = number_in(column, text, whole=column in ("tp", "hidden", "sp"))
    except CellError:
        return
    assert value is None or 0 <= value <= 1e15


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no text in UTF-8"):
        read_rows(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "nothing.csv")


def test_the_published_rows_have_sources():
    rows = read_rows(PUBLISHED_RUNS)
    assert len(rows) > 1700
    assert all(row.source for row in rows)
