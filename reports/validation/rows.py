"""Measured training runs, one CSV row each, read strictly at the door.

The columns are described in ``docs/validation.md``. Only ``id``, ``gpu`` and the model's shape
must exist as columns; a missing column or a blank cell means *not published*.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from simulators.errors import InputError

QUALITIES = ("A", "B", "C")
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
    ``reserved`` or ``device``), ``quality`` how far the row can be trusted (A, B or C).
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


_KINDS = {field.name: str(field.type) for field in dataclasses.fields(Row)}
_MAY_BE_ZERO = ("sp", "gated_mlp", "num_dense_layers", "tp_overlap", "grad_overlap")


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a CSV file.

    Raises:
        InputError: for a file that cannot be read, lacks a column that every row needs, has a
            cell of the wrong type or out of range, or two rows of one id.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError("runs", path, "is too large", f"at most {MAX_BYTES} bytes")
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, strict=True)
            check_header(table.fieldnames or ())
            rows = tuple(_row(number, cells) for number, cells in enumerate(table, start=2))
    except OSError as error:
        raise InputError("runs", path, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError("runs", path, f"is not a CSV file: {error}") from error
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise InputError("id", row.id, "appears twice", "one row per id")
        seen.add(row.id)
    if not rows:
        raise InputError("runs", path, "has no rows")
    return rows


def check_header(names: object) -> None:
    """Refuse a table that cannot be one of measured runs.

    Raises:
        InputError: naming the column that is missing.
    """
    present = set(names) if isinstance(names, (list, tuple)) else set()
    for name in REQUIRED:
        if name not in present:
            raise InputError("runs", name, "is a column that is missing", ", ".join(REQUIRED))
    if not present & set(MEASUREMENTS):
        what = "has no column with a measurement"
        raise InputError("runs", "header", what, ", ".join(MEASUREMENTS))


def _row(number: int, cells: Mapping[str | None, str | list[str] | None]) -> Row:
    if None in cells or None in cells.values():
        raise InputError("runs", f"line {number}", "does not have as many cells as the header")
    values: dict[str, object] = {}
    for name, kind in _KINDS.items():
        text = str(cells.get(name, "")).strip()
        if kind == "str":
            if text:
                values[name] = text
        elif text:
            values[name] = _number(number, name, text, whole=kind.startswith("int"))
    for name in ("id", "gpu"):
        if name not in values:
            raise InputError(name, "", f"is blank on line {number}")
    row = Row(**values)  # type: ignore[arg-type]
    if row.quality not in QUALITIES:
        raise InputError(f"{row.id}.quality", row.quality, "is not a grade", ", ".join(QUALITIES))
    return row


def _number(line: int, name: str, text: str, *, whole: bool) -> float | int:
    lowest = 0 if name in _MAY_BE_ZERO else None
    allowed = f"{'a whole' if whole else 'a'} number {'>= 0' if lowest == 0 else '> 0'}"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    good = math.isfinite(value) and (value > 0 or value == lowest)
    if not good or (whole and value != int(value)):
        raise InputError(f"line {line}, {name}", text, "is not usable", f"{allowed}, or blank")
    return int(value) if whole else value


T = TypeVar("T")


def given(value: T | None, default: T) -> T:
    """``value`` where it was published, else ``default``."""
    return default if value is None else value
