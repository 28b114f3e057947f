"""Predict the rows of measured tables, one group of equal conditions at a time.

Rows become the batches that predictions price too (``row_batches.py``). A group that cannot be
priced keeps the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

from .batch_prices import EVIDENCE_ORDER, price_batch
from .batches import Attentions, Batch
from .choice import choose_attention
from .measured_rows import match_gpu, size_columns, unusable, without_size
from .row_batches import ALIKE, CannotPriceError, RowBatches, row_batches

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# A burst of graph replays runs 54 products, and boards slow down over some tenths of a second:
# what share of the sustained slowdown a burst shows follows from its length (bursts on Hopper
# and Blackwell lose nothing at 1e11 FLOPs and most of it from 1e13 on).
BURST_PRODUCTS = 54
POWER_WINDOW_S = 0.3

# One kernel does no more: both take the fastest GPUs more than ten seconds.
LARGEST_WORK = {"FLOPs": 1e17, "bytes": 1e14}


@dataclass(frozen=True)
class PricedGroup:
    """Rows of equal conditions: ``positions`` in the table, seconds, or why there are none.

    ``size`` is the work of each row (FLOPs, or bytes for memory-bound classes), ``reasons``
    holds a text for each row that is skipped, "" for the others; all have shape (rows,).
    ``batches``: the kernels of each row, none where there is no price.
    """

    kernel_class: str
    gpu: str
    dtype: str
    positions: NDArray[np.int64]
    measured_s: Floats
    predicted_s: Floats
    size: Floats
    size_unit: str
    reasons: NDArray[np.object_]
    assumptions: tuple[str, ...]
    batches: tuple[Batch, ...] = ()


def price_rows(kind: str, rows: pd.DataFrame, gpus: Mapping[str, Gpu]) -> Iterator[PricedGroup]:
    """Every row of a table of one class (``measured_rows.read_table``), in groups."""
    rows = rows.reset_index(drop=True)
    reasons = unusable(kind, rows)
    # What has no size is priced as one element of everything; its reason keeps it out.
    rows.loc[without_size(kind, rows), size_columns(kind)] = 1
    if kind == "attention":
        rows["causal"] = (rows["causal"] == 1).astype(np.int64)
    declared = dict(gpus)
    for key, part in rows.groupby(ALIKE[kind], sort=False, dropna=False):
        first = part.iloc[0]
        positions = part.index.to_numpy(np.int64)
        name, about = match_gpu(str(first["gpu"]), declared)
        dtype = str(first["dtype"]) if "dtype" in part.columns else ""
        nothing = np.full(len(part), np.nan)
        measured = measured_seconds(kind, part)
        try:
            if not name:
                raise CannotPriceError(f"GPU {first['gpu']} is not declared")
            ran = row_batches(kind, part, declared[name])
            predicted, transferred = _priced(ran, declared[name])
        except (CannotPriceError, InputError) as error:
            why = str(error) if isinstance(error, CannotPriceError) else error.problem
            skipped = np.where(reasons[positions] == "", why, reasons[positions])
            yield PricedGroup(
                *(kind, str(key[0]), dtype, positions, measured, nothing, nothing, ""),
                *(skipped, ()),
            )
            continue
        stated = [about, *ran.assumptions]
        unit = "bytes" if kind in ("streaming", "bandwidth") else "FLOPs"
        missing = np.where(np.isfinite(predicted), "", "has no size")
        too_much = f"has sizes that no kernel has: more than {LARGEST_WORK[unit]:g} {unit}"
        missing = np.where(ran.size > LARGEST_WORK[unit], too_much, missing)
        if transferred:
            stated.append(f"coefficients transferred to {name}")
        yield PricedGroup(
            kernel_class=ran.kernel_class,
            gpu=str(key[0]),
            dtype=dtype,
            positions=positions,
            measured_s=measured,
            predicted_s=predicted,
            size=ran.size,
            size_unit=unit,
            reasons=np.where(reasons[positions] == "", missing, reasons[positions]),
            assumptions=tuple(text for text in stated if text),
            batches=ran.batches,
        )


def measured_seconds(kind: str, rows: pd.DataFrame) -> Floats:
    """What was measured, in seconds, shape (rows,); a bandwidth is turned into a time."""
    if kind == "bandwidth":
        rate = rows["gbps"].to_numpy(np.float64) * 1e9
        return rows["bytes"].to_numpy(np.float64) / np.where(rate > 0, rate, np.nan)
    microseconds: Floats = rows["time_us"].to_numpy(np.float64)
    return microseconds * 1e-6


def _priced(ran: RowBatches, gpu: Gpu) -> tuple[Floats, bool]:
    """Predicted time of each row as it was timed, shape (rows,), and whether other GPUs'
    coefficients say so."""

    def total(sustained: bool) -> tuple[Floats, Evidence]:
        prices = [
            price_batch(gpu, batch, sustained=sustained, as_training=False)
            for batch in ran.batches
        ]
        seconds: Floats = np.sum([each.seconds for each in prices], axis=0)
        return seconds, EVIDENCE_ORDER[prices[-1].evidence[0]]

    seconds, evidence = total(ran.long)
    if not ran.long and not ran.pauses:
        throttled = 1.0 - np.exp(-BURST_PRODUCTS * seconds / POWER_WINDOW_S)
        seconds = seconds + throttled * (total(True)[0] - seconds)
    seconds = np.where(np.isfinite(ran.size), seconds + ran.others_s, np.nan)
    transferred = evidence is Evidence.ESTIMATED and ran.kernel_class != "bandwidth"
    return seconds, transferred or any(_is_served_elsewhere(batch, gpu) for batch in ran.batches)


def _is_served_elsewhere(batch: Batch, gpu: Gpu) -> bool:
    """Whether an inference server's attention is priced as on another GPU."""
    if not isinstance(batch, Attentions) or not batch.kernel.startswith("serving"):
        return False
    return choose_attention(gpu, batch.dtype, batch.kernel).fit.name != gpu.name
