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

import dataclasses
import functools
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

from .batches import Batch, Kind, Streamings
from .measured_rows import match_gpu, read_tables, sustained
from .row_prices import price_rows

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

NEIGHBOURS = 8
CLASSES = ("gemm", "grouped_gemm", "attention", "streaming")
# A kernel this far off its fitted price was hardly timed as the table says.
DOUBTFUL_FACTOR = 10


@dataclass(frozen=True)
class MeasuredTable:
    """Measured rows by class. Equal by content: ``digest`` names it, so it can key a cache."""

    digest: str
    rows: tuple[tuple[str, pd.DataFrame], ...] = dataclasses.field(repr=False, compare=False)

    def correct(self, gpu: Gpu, batch: Batch) -> tuple[Floats, NDArray[np.bool_]]:
        """Factors on the formulas' seconds, and which kernels were measured, both (n,)."""
        known = corrections(gpu, self)
        factors = np.ones(len(batch))
        measured = np.zeros(len(batch), dtype=bool)
        for kind, positions, shapes in batch.kinds():
            if kind in known:
                ratios, measured[positions] = known[kind](shapes.astype(np.float64))
                factors[positions] = np.exp(ratios)
        if isinstance(batch, Streamings):
            # One launch of the bytes was timed.
            measured &= batch.sizes[:, 1] == 1
        return factors, measured


def load_measured(path: Path) -> MeasuredTable:
    """Every table at ``path``: a CSV file (optionally gzipped), a folder of them, or a file of
    ``trainscout measure``.

    Raises:
        InputError: when there is none with rows, or one cannot be read or holds no training
            kernels.
    """
    field, allowed = "simulator.measured_kernels", "a file of trainscout measure"
    files = sorted(path.glob("*.csv*")) if path.is_dir() else [path]
    if not files:
        raise InputError(field, path, "holds no CSV tables", allowed)
    digest = hashlib.sha256()
    rows = []
    for file in files:
        for kind, table in read_tables(file):
            if kind not in CLASSES:
                raise InputError(field, file, f"holds {kind}", CLASSES)
            rows.append((kind, table))
        digest.update(file.read_bytes())
    if all(table.empty for _, table in rows):
        raise InputError(field, path, "holds no rows", allowed)
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
def corrections(gpu: Gpu, table: MeasuredTable) -> dict[Kind, Correction]:
    """What a table says about one GPU, by kind of kernel (``Batch.kinds``)."""
    import pandas as pd

    found: dict[Kind, list[pd.DataFrame]] = {}
    for kind, rows in table.rows:
        names = {name: match_gpu(str(name), {gpu.name: gpu})[0] for name in rows["gpu"].unique()}
        own = rows[rows["gpu"].map(names) == gpu.name].reset_index(drop=True)
        long_run = sustained(own)
        for group in price_rows(kind, own, {gpu.name: gpu}):
            used = group.reasons == ""
            # The time of several kernels says nothing about one of them.
            if not used.any() or len(group.batches) != 1:
                continue
            for key, _, shapes in group.batches[0].kinds():
                kept = [tuple(shape) for shape in shapes[used].tolist()]
                entry = pd.DataFrame({"shape": kept})
                entry["ratio"] = np.log(group.measured_s[used] / group.predicted_s[used])
                entry["long"] = long_run[group.positions[used]]
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
