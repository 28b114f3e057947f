"""Measured training runs, one CSV row each, read strictly.

The columns are described in ``docs/validation.md``. Only ``id``, ``gpu`` and the model's shape
must exist as columns; a missing column or a blank cell means *not published*. A header that is
wrong refuses the table, a cell that is wrong its row alone.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from trainscout.simulators.predictor.question.errors import InputError, nearest_name, read_text

from .cells import CellError, batch_in, is_plain, number_in, words_in

QUALITIES = ("A", "B", "C")
TRUSTED = QUALITIES[:2]
"""Grades of rows that count."""
REQUIRED = ("id", "gpu", "num_layers", "hidden", "num_heads", "seq_len")
MEASUREMENTS = (
    "measured_iter_s",
    "derived_iter_s",
    "measured_tokens_per_s_per_gpu",
    "measured_tflops_per_gpu",
    "measured_mfu",
    "measured_peak_mem_gib",
)
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Row:
    """One published run, cells as printed; None where nothing was published.

    Sizes in elements and tokens, times in seconds, ``measured_mfu`` in percent,
    ``measured_peak_mem_gib`` in GiB, ``inter_link_gbps_per_gpu`` in Gb/s. Degrees, flags and
    labels as in Megatron-LM; ``memory_kind`` says what the memory figure counts (``allocated``,
    ``reserved`` or ``device``), ``quality`` how far the row can be trusted (A, B or C). ``fault``
    is no column: it says why the row cannot be used, "" when it can; nor are ``readings``, what
    cells were read as that are no plain numbers, and ``extrapolated``: the publication's times are
    too regular to have been measured (``regularity``).
    """

    id: str
    gpu: str
    source: str = ""
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    intra_link: str = ""
    inter_link_gbps_per_gpu: float | None = None
    framework: str = ""
    model: str = ""
    params_b: float | None = None
    num_layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    num_heads: int | None = None
    num_query_groups: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    gated_mlp: int | None = None
    num_experts: int | None = None
    topk: int | None = None
    moe_ffn_hidden: int | None = None
    num_dense_layers: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    vpp: int | None = None
    sp: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    recompute: str = ""
    dist_optimizer: str = ""
    dtype: str = ""
    tp_overlap: int | None = None
    grad_overlap: int | None = None
    measured_iter_s: float | None = None
    derived_iter_s: float | None = None
    measured_tokens_per_s_per_gpu: float | None = None
    measured_tflops_per_gpu: float | None = None
    measured_mfu: float | None = None
    measured_peak_mem_gib: float | None = None
    memory_kind: str = ""
    tflops_convention: str = ""
    notes: str = ""
    quality: str = "A"
    inferred_fields: str = ""
    measured_collectives: str = ""
    fault: str = ""
    readings: str = ""
    extrapolated: bool = False

    @property
    def inferred(self) -> frozenset[str]:
        """The words of ``inferred_fields``: columns that nobody published, and why."""
        return frozenset(re.findall(r"\w+", self.inferred_fields))


_NO_COLUMNS = ("fault", "readings", "extrapolated")
_KINDS = {field.name: str(field.type) for field in fields(Row) if field.name not in _NO_COLUMNS}
_SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}
_NAMES_SHOWN = 6


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a CSV file; lines without any content do not count.

    A row that cannot be read is returned with its ``fault``: the line, the column, the value
    and what is wrong with it.

    Raises:
        InputError: for a file that cannot be read, is no CSV file, has no rows, has two columns
            of one name or lacks a column that every row needs.
    """
    lines = csv_lines(path)
    names = _names(lines[0][1]) if lines else ()
    check_header(path, names)
    rows = tuple(_row(number, names, cells) for number, cells in lines[1:])
    if not rows:
        raise InputError("runs", path, "has no rows")
    return _one_of_each_name(rows)


def csv_lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file with any content, each with its number.

    Raises:
        InputError: for a file that cannot be read, or is none.
    """
    table = csv.reader(io.StringIO(read_text("runs", path, MAX_BYTES)), strict=True)
    try:
        return [(table.line_num, cells) for cells in table if any(map(str.strip, cells))]
    except csv.Error as error:
        raise InputError("runs", path, f"is not a CSV file: {error}") from error


def unread_columns(path: Path) -> tuple[str, ...]:
    """The columns of a table that was read which are none of ``Row``'s, each with the nearest that
    is and that the table lacks."""
    header = csv_lines(path)[0][1]
    known = [name for name in _KINDS if name not in _names(header)]
    return tuple(
        f"{shown.strip()} (nearest: {near})"
        if (near := nearest_name(name, known))
        else shown.strip()
        for shown, name in zip(header, _names(header), strict=True)
        if name and name not in _KINDS
    )


def _names(header: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip().lower().replace(" ", "_") for name in header)


def check_header(path: Path, names: Sequence[str]) -> None:
    """Refuse a table that cannot be one of measured runs, saying what was found instead."""
    if not names:
        raise InputError("runs", path, "is empty", "a CSV file of measured runs")
    if len(names) == 1:
        for separator, name in _SEPARATORS.items():
            if separator in names[0]:
                raise InputError("runs", path, f"is separated by {name}", "commas")
    known = [name for name in names if name in _KINDS]
    if not known:
        found = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        what = f"has no header row; found: {found}"
        raise InputError("runs", path, what, f"at least {', '.join(REQUIRED)}")
    if twice := sorted(name for name, count in Counter(known).items() if count > 1):
        raise InputError(
            "runs", ", ".join(twice), "is a column that is there twice", "one of each"
        )
    if missing := [name for name in REQUIRED if name not in known]:
        what = f"is missing among the columns of {path.name}"
        raise InputError("runs", ", ".join(missing), what, ", ".join(REQUIRED))
    if not set(known) & set(MEASUREMENTS):
        what = "has no column with a measurement"
        raise InputError("runs", path, what, f"at least one of {', '.join(MEASUREMENTS)}")


def _row(number: int, names: Sequence[str], texts: Sequence[str]) -> Row:
    """The row on a line; with ``fault`` and little else where a cell cannot be meant."""
    cells = {name: text for name, text in zip(names, texts, strict=False) if name in _KINDS}
    values: dict[str, Any] = {}
    faults: list[str] = []
    if len(texts) != len(names):
        faults.append(f"{len(texts)} cells under a header of {len(names)}")
    readings: list[str] = []
    # Batches may be given in tokens, of sequences that are read first.
    for name, text in sorted(cells.items(), key=lambda cell: cell[0].endswith("_batch")):
        try:
            if _KINDS[name] == "str":
                value: object = words_in(text)
            else:
                value = batch_in(name, text, values.get("seq_len"))
                if value is None:
                    value = number_in(name, text, whole=_KINDS[name].startswith("int"))
                if value is not None and not is_plain(name, text):
                    readings.append(f"{name}={text.strip()} is {value:.6g}")
        except CellError as error:
            faults.append(f"{name}={text.strip()} {error}")
            continue
        if value not in ("", None):
            values[name] = value
    for name in ("id", "gpu"):
        if not values.setdefault(name, ""):
            faults.append(f"{name} is blank")
    quality = values.get("quality", QUALITIES[0]).upper()
    if quality not in QUALITIES:
        faults.append(f"quality={quality} is not a grade (allowed: {', '.join(QUALITIES)})")
        quality = QUALITIES[0]
    values["quality"] = quality
    row = Row(**values, readings="; ".join(readings))
    return _faulty(row, number, faults) if faults else row


def _faulty(row: Row, number: int, faults: Sequence[str]) -> Row:
    fault = f"line {number}: {'; '.join(faults)}"
    return Row(
        id=row.id or f"line {number}",
        gpu=row.gpu or "unknown",
        source=row.source,
        model=row.model,
        quality=row.quality,
        fault=fault,
    )


def _one_of_each_name(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Of rows of one name the first counts; the others are at fault."""
    seen: set[str] = set()
    told = []
    for row in rows:
        if row.id in seen and not row.fault:
            row = replace(row, fault=f"id={row.id} appears twice")
        seen.add(row.id)
        told.append(row)
    return tuple(told)


T = TypeVar("T")


def given(value: T | None, default: T) -> T:
    """``value`` where it was published, else ``default``."""
    return default if value is None else value
