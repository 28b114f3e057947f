"""A cluster's own measured collectives: they take precedence over what its fabric should do.

The table holds what whole nodes, or GPUs of one, reached: bus bandwidth (nccl-tests' ``busbw``) by
collective, node count and size. Where some of them have several sizes, the white-box price is put
right by ``corrected_s``, on the number of a node's GPUs nearest to a communicator's, or between
nodes log-log between the node counts measured, the nearest one's outside them. Nodes count from
the first to the last of a communicator, whose siblings fill those between.
Of a single size between nodes, a call on any communicator takes

    seconds = latency + bytes x bus factor / (bus bandwidth x NIC share)

with the share that its ranks have of their nodes' NICs (one rank a node of eight with seven
siblings has an eighth), or of a GPU's NVLink or PCIe where whole nodes' NICs carry more, and the
larger of the white-box model's latency and ``steps x hop``: the time of a ring's step that stays,
in the *undisturbed* (high) band, as ranks grow and each carries less, which on a fabric of whole
bandwidth is latency alone. Bandwidths are what is left when hops
are taken out.
What was measured is taken undisturbed but on the most nodes, where it is the mean: such a job has
no nodes to choose from (gradients of the one published cluster fit so).
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from trainscout.simulators.predictor.io.measurements import read_measurements, rows_text
from trainscout.simulators.predictor.question.cluster import (
    MEASURED_KINDS,
    Cluster,
    MeasuredCollective,
)
from trainscout.simulators.predictor.question.errors import InputError, nearest_name, read_text

FIELD = "cluster.measured_collectives"
GIB = 2**30
_RATES = ("bus_GBps", "mean_GBps", "busbw")
_COLUMNS = (
    "collective, nodes, bus_GBps; if known bytes, gpus, band_high_GBps, band_low_GBps, source; "
    "trainscout collectives read writes them of what nccl-tests print"
)
_MOST_BYTES = 4 << 20


def read_measured_collectives(path: Path, field: str = FIELD) -> tuple[MeasuredCollective, ...]:
    """The rows of a CSV file of measured collectives, or of a file of ``trainscout measure``, by
    collective, nodes and size.

    ``field`` is what a user wrote the file's name under. Where ``bytes`` is not said it is 1 GiB.

    Raises:
        InputError: for a file that cannot be read, lacks a column or has a cell that cannot be
            meant, naming the line, the column and what is allowed.
    """
    if path.suffix == ".json":
        text = rows_text(read_measurements(field, path).get("collectives"))
    else:
        text = read_text(field, path, _MOST_BYTES)
    try:
        rows = list(_rows(csv.DictReader(io.StringIO(text), strict=True), path, field))
    except csv.Error as error:
        raise InputError(field, path, f"cannot be read: {error}") from error
    if not rows:
        raise InputError(field, path, "has no rows", _COLUMNS)
    ordered = sorted(rows, key=_what)
    for before, row in pairwise(ordered):
        if _what(row) == _what(before):
            on = f"{row.gpus} GPUs" if row.gpus else f"{row.nodes} nodes"
            what = f"{row.kind} over {on}, {row.bytes} bytes"
            raise InputError(field, path, f"says {what} twice", "one row of each")
    return tuple(ordered)


def _what(row: MeasuredCollective) -> tuple[str, int, int, int]:
    return row.kind, row.nodes, row.gpus, row.bytes


def _rows(reader: csv.DictReader[str], path: Path, field: str) -> Iterable[MeasuredCollective]:
    columns = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = columns
    for between, name in ((";", "';'"), ("\t", "a tab")):
        if len(columns) == 1 and between in columns[0]:
            allowed = "commas, decimals with a point"
            raise InputError(field, path, f"is separated by {name}", allowed)
    if twice := [name for name in dict.fromkeys(columns) if columns.count(name) > 1]:
        raise InputError(field, path, f"has two columns {', '.join(twice)}", "one of each")
    rate = next((name for name in _RATES if name in columns), None)
    missing = [name for name in ("collective", "nodes") if name not in columns]
    missing += [] if rate else [_RATES[0]]
    if missing or rate is None:
        raise InputError(field, path, f"has no column {', '.join(missing)}", _COLUMNS)
    for cells in reader:
        if not any((text or "").strip() for text in cells.values() if not isinstance(text, list)):
            continue
        where = f"{path}, line {reader.line_num}"
        if None in cells:
            allowed = f"{len(columns)}, decimals with a point"
            raise InputError(field, where, "has more cells than there are columns", allowed)
        high = _number(cells, "band_high_GBps", where, field, optional=True)
        low = _number(cells, "band_low_GBps", where, field, optional=True)
        bus = _number(cells, rate, where, field)
        row = MeasuredCollective(
            kind=_kind(cells["collective"], where, field),
            nodes=int(_number(cells, "nodes", where, field, whole=True)),
            bytes=int(_number(cells, "bytes", where, field, whole=True, optional=True) or GIB),
            bus_gbs=bus,
            high_gbs=high or bus,
            low_gbs=low or bus,
            gpus=int(_number(cells, "gpus", where, field, whole=True, optional=True)),
        )
        if row.gpus and (row.nodes > 1 or row.gpus < 2):
            problem = f"has {row.gpus} GPUs of {row.nodes} nodes"
            raise InputError(field, where, problem, "gpus: 2 or more of one node; blank: all")
        if not row.low_gbs <= row.bus_gbs <= row.high_gbs:
            problem = f"has a band of {row.low_gbs:g} to {row.high_gbs:g} GB/s around {bus:g}"
            raise InputError(field, where, problem, "band_low_GBps <= bus_GBps <= band_high_GBps")
        yield row


def _kind(text: str | None, where: str, field: str) -> str:
    """A collective by any of its usual names: AllReduce, all-reduce, all_reduce_perf."""
    plain = (text or "").strip().lower().removesuffix("_perf")
    plain = plain.replace("_", "").replace("-", "").replace(" ", "")
    known = {kind.replace("_", ""): kind for kind in MEASURED_KINDS}
    if plain not in known:
        near = nearest_name(plain, known)
        problem = f"has {(text or '').strip()!r} as its collective"
        nearest = None if near is None else known[near]
        raise InputError(field, where, problem, MEASURED_KINDS, nearest)
    return known[plain]


def _number(
    cells: dict[str, str],
    name: str,
    where: str,
    field: str,
    *,
    whole: bool = False,
    optional: bool = False,
) -> float:
    """A positive number of a cell; 0 for an optional one that is blank."""
    text = (cells.get(name) or "").strip()
    if not text and optional:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or (whole and value != int(value)):
        allowed = "a whole number > 0" if whole else "a number > 0"
        raise InputError(field, where, f"has {text!r} as its {name}", allowed)
    return value


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes on the bus per byte of NCCL's size, as nccl-tests counts them."""
    share = (ranks - 1) / ranks
    return 2 * share if kind == "all_reduce" else share


def ring_hops(kind: str, ranks: int) -> int:
    """Hops of a ring, one after another; pairs of an all-to-all have one."""
    return {"all_reduce": 2 * (ranks - 1), "all_to_all": 1}.get(kind, ranks - 1)


def measured_us(row: MeasuredCollective, gpus_per_node: int) -> float:
    """Microseconds of an undisturbed call."""
    factor = bus_factor(row.kind, row.ranks(gpus_per_node))
    return row.bytes * factor / (1e3 * row.high_gbs)


# A call starts no sooner than this share of what the model says, whatever a line through two
# measured sizes gives.
_LEAST_START = 0.2


# The smallest size measured tells when calls start where its bytes take no longer than that.
_MOSTLY_START = 2.0


class Figure(NamedTuple):
    """Seconds of a measured call of ``bytes``, and the white-box prices of one byte and of it."""

    bytes: int
    least_s: float
    price_s: float
    measured_s: float


def corrected_s(call: Figure, told: Sequence[Figure]) -> float:
    """What a call takes by the sizes measured, smallest first: the line through the first and the
    last of them (how much later calls start, and how many times as long what of them grows with
    the size takes; of the first what grows alone, where it hardly tells of a start), times how far
    off it is at the sizes around the call's. ``call`` need not have been measured."""
    small, large = told[0], told[-1]
    if small.price_s > _MOSTLY_START * small.least_s:
        large = small
    off = [(small.bytes, 1.0)]
    off += [(each.bytes, each.measured_s / _on_line_s(each, small, large)) for each in told[1:]]
    return _on_line_s(call, small, large) * interpolated(off, call.bytes)


def _on_line_s(call: Figure, small: Figure, large: Figure) -> float:
    grows, small_grows, large_grows = (
        max(0.0, each.price_s - each.least_s) for each in (call, small, large)
    )
    later_s, beyond_s = (each.measured_s - each.least_s for each in (small, large))
    if large_grows <= small_grows:
        growth, start_s = beyond_s / large_grows if large_grows else 1.0, 0.0
    else:
        growth = max(0.0, (beyond_s - later_s) / (large_grows - small_grows))
        start_s = later_s - growth * small_grows
    starts_s = max(call.least_s + start_s, _LEAST_START * call.least_s)
    return starts_s + max(0.0, growth) * grows


@functools.lru_cache(maxsize=256)
def rows_of(kind: str, cluster: Cluster) -> tuple[MeasuredCollective, ...]:
    """The cluster's measurements of one collective, by node count and size."""
    return tuple(row for row in cluster.measured if row.kind == kind)


@functools.lru_cache(maxsize=256)
def hop_us(kind: str, cluster: Cluster) -> float:
    """Microseconds of a ring's hop between nodes beyond its bytes, as far as the table tells."""
    per_node = cluster.gpus_per_node
    # One size only: bandwidth that was lost to others on the fabric would pass for latency.
    # With r ranks a step takes bytes / (r x bandwidth) + hop.
    steps = [
        (ranks, measured_us(row, per_node) / ring_hops(kind, ranks))
        for row in rows_of(kind, cluster)
        if row.nodes > 1 and row.high_gbs > row.bus_gbs
        for ranks in [row.nodes * per_node]
    ]
    hops = [(us1 * r1 - us0 * r0) / (r1 - r0) for (r0, us0), (r1, us1) in pairwise(steps)]
    return max(0.0, median(hops)) if hops else 0.0


def interpolated(points: Sequence[tuple[float, float]], wanted: float) -> float:
    """Log-log between ``points`` (ascending), the nearest one's value outside them."""
    if wanted <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if wanted <= x1:
            part = math.log(wanted / x0) / math.log(x1 / x0)
            return y0 * math.pow(y1 / y0, part)
    return points[-1][1]
