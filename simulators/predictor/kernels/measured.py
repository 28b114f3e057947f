"""A user's own measured kernels: they take precedence over the fitted formulas.

A table says how much slower or faster than the formula each of its rows ran, under the row's
own conditions (a burst is held against the burst price). An operation of exactly a measured
shape takes that ratio, which for a row timed at the power limit returns the measured time, and
its evidence is *measured*. Any other takes its neighbours' ratio: with distances in octaves
over the shape,

    log ratio = sum(log ratio_i / d_i^2) / sum(1 / d_i^2) x exp(-d_nearest^2)

over the ``NEIGHBOURS`` nearest rows of the same precision, layout, pass and kernel, so that a
correction is whole beside a measured shape, a third one octave away and gone two octaves away.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.kernels.row_prices import price_rows
from trainscout.simulators.predictor.kernels.streaming_ops import streaming_bytes, streaming_kind
from trainscout.simulators.predictor.kernels.tables import (
    TRAINING_DTYPES,
    attention_kernel,
    match_gpu,
    read_table,
    sustained,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Convolution,
    Gemm,
    GroupedGemm,
    Kernel,
)

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Key = tuple[str, ...]

NEIGHBOURS = 8
CLASSES = ("gemm", "grouped_gemm", "attention", "streaming")
# A kernel this far off its fitted price was hardly timed as the table says.
DOUBTFUL_FACTOR = 10
_LAYOUT_OF_STAGE = {"fwd": "TN", "bwd_grad_act": "NN", "bwd_grad_w": "NT"}


@dataclass(frozen=True)
class MeasuredTable:
    """Measured rows by class. Equal by content: ``digest`` names it, so it can key a cache."""

    digest: str
    rows: tuple[tuple[str, pd.DataFrame], ...] = field(repr=False, compare=False)


def load_measured(path: Path) -> MeasuredTable:
    """Every table at ``path``: one CSV file (optionally gzipped), or a folder of them.

    Raises:
        InputError: when there is none with rows, or one cannot be read or holds no training
            kernels.
    """
    files = sorted(path.glob("*.csv*")) if path.is_dir() else [path]
    if not files:
        raise InputError("simulator.measured_kernels", path, "holds no CSV tables")
    digest = hashlib.sha256()
    rows = []
    for file in files:
        kind, table = read_table(file)
        if kind not in CLASSES:
            raise InputError("simulator.measured_kernels", file, f"holds {kind}", CLASSES)
        digest.update(file.read_bytes())
        rows.append((kind, table))
    if all(table.empty for _, table in rows):
        raise InputError("simulator.measured_kernels", path, "holds no rows")
    return MeasuredTable(digest.hexdigest(), tuple(rows))


@dataclass(frozen=True)
class Correction:
    """Measured over predicted time of one kind of operation, as logarithms by shape.

    ``log_shapes`` (rows, dims) holds octaves, ``log_ratios`` (rows,) natural logarithms;
    ``exact`` maps a shape to its ratio.
    """

    log_shapes: Floats
    log_ratios: Floats
    exact: dict[tuple[float, ...], float]

    def __call__(self, shapes: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Log ratios of shapes (ops, dims), and which of them were measured exactly."""
        wanted = np.log2(np.maximum(shapes, 1.0))
        squared = ((wanted[:, None, :] - self.log_shapes[None, :, :]) ** 2).sum(axis=2)
        near = np.argsort(squared, axis=1)[:, :NEIGHBOURS]
        distance = np.maximum(np.take_along_axis(squared, near, axis=1), 1e-12)
        weight = 1.0 / distance
        mean = (weight * self.log_ratios[near]).sum(axis=1) / weight.sum(axis=1)
        ratios: Floats = mean * np.exp(-distance.min(axis=1))
        found = [self.exact.get(tuple(shape)) for shape in shapes.tolist()]
        hit = np.array([ratio is not None for ratio in found], dtype=bool)
        ratios[hit] = [ratio for ratio in found if ratio is not None]
        return ratios, hit


@functools.lru_cache(maxsize=64)
def corrections(gpu: Gpu, table: MeasuredTable) -> dict[Key, Correction]:
    """What a table says about one GPU, by kind of operation (``operation_key``)."""
    import pandas as pd

    found: dict[Key, list[pd.DataFrame]] = {}
    for kind, rows in table.rows:
        names = {name: match_gpu(str(name), {gpu.name: gpu})[0] for name in rows["gpu"].unique()}
        own = rows[rows["gpu"].map(names) == gpu.name].reset_index(drop=True)
        long_run = sustained(own)
        for group in price_rows(kind, own, {gpu.name: gpu}):
            used = group.reasons == ""
            if not used.any():
                continue
            part = own.iloc[group.positions[used]]
            key, shapes = _rows_key(kind, part)
            if key is None:
                continue
            ratios = np.log(group.measured_s[used] / group.predicted_s[used])
            entry = pd.DataFrame({"shape": [tuple(shape) for shape in shapes.tolist()]})
            entry["ratio"], entry["long"] = ratios, long_run[group.positions[used]]
            found.setdefault(key, []).append(entry)
    return {key: _correction(pd.concat(parts)) for key, parts in found.items()}


@functools.lru_cache(maxsize=64)
def doubts(gpu: Gpu, table: MeasuredTable) -> tuple[str, ...]:
    """What a reader of prices by this table should know: that it says nothing about the GPU, or
    how many of its kernels are so far off the formulas that a unit or a GPU may be wrong."""
    known = corrections(gpu, table)
    if not known:
        return (f"no usable row of the measured kernels is about {gpu.name}",)
    ratios = [ratio for each in known.values() for ratio in each.exact.values()]
    far = sum(abs(ratio) > math.log(DOUBTFUL_FACTOR) for ratio in ratios)
    if not far:
        return ()
    return (
        f"{far} of {len(ratios)} measured kernels are more than {DOUBTFUL_FACTOR}x off their "
        f"fitted price on {gpu.name}: check their unit and GPU",
    )


def _correction(entries: pd.DataFrame) -> Correction:
    """One ratio per shape: the median of its sustained rows, of all where there are none."""
    any_long = entries.groupby("shape")["long"].transform("any")
    kept = entries[entries["long"] | ~any_long].groupby("shape")["ratio"].median()
    shapes = np.array(kept.index.to_list(), dtype=np.float64)
    return Correction(
        log_shapes=np.log2(np.maximum(shapes, 1.0)),
        log_ratios=kept.to_numpy(np.float64),
        exact=dict(zip(kept.index.to_list(), kept.to_list(), strict=True)),
    )


def _rows_key(kind: str, rows: pd.DataFrame) -> tuple[Key | None, Floats]:
    """Key and shapes (rows, dims) of table rows of equal conditions; None: no operation's."""
    first = rows.iloc[0]
    if kind == "streaming":
        name = streaming_kind(str(first["op"]), str(first["pass"]), str(first["impl"]))
        return ("streaming", name), streaming_bytes(rows)[:, None]
    dtype = TRAINING_DTYPES[str(first["dtype"]).removesuffix("+quant")]
    if kind == "gemm":
        columns, layout = ["m", "n", "k", "batch"], str(first["layout"]).rstrip("?")
        key: Key | None = ("gemm", _numeric(dtype), layout)
    elif kind == "grouped_gemm":
        columns = ["groups", "m_per_group", "n", "k"]
        stage = _LAYOUT_OF_STAGE.get(str(first["stage"]))
        key = ("grouped_gemm", _numeric(dtype), stage) if stage else None
    else:
        columns = ["batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v"]
        columns.append("causal")
        kernel, pass_ = attention_kernel(str(first["impl"])), str(first["pass"])
        training = kernel in ("flash", "flash2") and pass_ in ("fwd", "bwd")
        key = ("attention", _numeric(dtype), pass_, kernel) if training else None
    return key, rows[columns].to_numpy(np.float64)


def _numeric(dtype: str) -> str:
    """16-bit types run alike."""
    return "half" if dtype in ("bf16", "fp16") else dtype


def operation_key(op: Kernel) -> tuple[Key, tuple[float, ...]]:
    """Kind of an operation as tables tell them apart, and its shape."""
    if isinstance(op, Gemm):
        return ("gemm", _numeric(op.dtype), op.layout), (op.m, op.n, op.k, op.batch)
    if isinstance(op, GroupedGemm):
        key = ("grouped_gemm", _numeric(op.dtype), op.layout)
        return key, (op.groups, op.m_per_group, op.n, op.k)
    if isinstance(op, Attention):
        sizes = (op.batch, op.heads, op.kv_heads, op.seq_q, op.seq_k, op.head_dim, op.head_dim_v)
        return ("attention", _numeric(op.dtype), op.pass_, op.kernel), (*sizes, int(op.causal))
    if isinstance(op, Convolution):
        return ("convolution", _numeric(op.dtype), op.pass_), (float(op.flops),)
    # Kernels that share the bytes each move their part of them.
    return ("streaming", op.kind), (op.bytes / op.launches,)


def correct(
    gpu: Gpu, ops: Sequence[Kernel], table: MeasuredTable
) -> tuple[Floats, NDArray[np.bool_]]:
    """Factors on the formulas' seconds, and which operations were measured, both (ops,)."""
    known = corrections(gpu, table)
    factors = np.ones(len(ops))
    measured = np.zeros(len(ops), dtype=bool)
    by_key: dict[Key, list[tuple[int, tuple[float, ...]]]] = {}
    for position, op in enumerate(ops):
        key, shape = operation_key(op)
        if key in known:
            by_key.setdefault(key, []).append((position, shape))
    for key, entries in by_key.items():
        positions = [position for position, _ in entries]
        shapes = np.array([shape for _, shape in entries], dtype=np.float64)
        ratios, hit = known[key](shapes)
        single = np.array([getattr(ops[position], "launches", 1) == 1 for position in positions])
        factors[positions], measured[positions] = np.exp(ratios), hit & single
    return factors, measured
