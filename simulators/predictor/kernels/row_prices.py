"""Predict the rows of measured tables, one group of equal conditions at a time.

A group shares GPU, precision, implementation and flags, so what has to be assumed to price it
is said once; its rows are priced as arrays. A group that cannot be priced keeps the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.laboratory.kernels.fit_attention import SHAPE, attention_flops
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels.attention import price_attention
from trainscout.simulators.predictor.kernels.coefficients import (
    ATTENTION_SECTIONS,
    cast_dram_efficiency,
    choose_attention,
    choose_gemm,
    grouped_evidence,
)
from trainscout.simulators.predictor.kernels.gemm import price_gemms
from trainscout.simulators.predictor.kernels.grouped_rows import (
    ONE_KERNEL,
    STAGES,
    grouped_seconds,
)
from trainscout.simulators.predictor.kernels.streaming import price_streaming, streaming_evidence
from trainscout.simulators.predictor.kernels.streaming_ops import streaming_bytes, streaming_kind
from trainscout.simulators.predictor.kernels.tables import (
    CAST_BYTES,
    CAST_INCLUDED,
    CAST_LAUNCH_S,
    SUSTAINED_FLAGS,
    TRAINING_DTYPES,
    attention_kernel,
    match_gpu,
    size_columns,
    unusable,
    without_size,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

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

# Attention benchmarks pause between kernels; only these rows met the power limit.
LONG_ATTENTION_FLAGS = "sustained|in_situ"
# What makes the rows of one group alike, by class.
_ALIKE = {
    "gemm": ["gpu", "dtype", "impl", "flag", "layout"],
    "grouped_gemm": ["gpu", "dtype", "impl", "flag", "stage"],
    "attention": ["gpu", "dtype", "impl", "flag", "pass"],
    "streaming": ["gpu", "dtype", "impl", "flag", "op", "pass"],
    "bandwidth": ["gpu", "benchmark"],
    "fused_moe": ["gpu"],
}


@dataclass(frozen=True)
class PricedGroup:
    """Rows of equal conditions: ``positions`` in the table, seconds, or why there are none.

    ``size`` is the work of each row (FLOPs, or bytes for memory-bound classes), ``reasons``
    holds a text for each row that is skipped, "" for the others; all have shape (rows,).
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


@dataclass(frozen=True)
class _Price:
    kernel_class: str
    seconds: Floats
    size: Floats
    evidence: Evidence
    assumptions: tuple[str, ...]


class _CannotPriceError(Exception):
    """A group has no price; the text says why."""


def price_rows(kind: str, rows: pd.DataFrame, gpus: Mapping[str, Gpu]) -> Iterator[PricedGroup]:
    """Every row of a table of one class (``tables.read_table``), in groups."""
    rows = rows.reset_index(drop=True)
    reasons = unusable(kind, rows)
    # What has no size is priced as one element of everything; its reason keeps it out.
    rows.loc[without_size(kind, rows), size_columns(kind)] = 1
    if kind == "attention":
        rows["causal"] = (rows["causal"] == 1).astype(np.int64)
    declared = dict(gpus)
    for key, part in rows.groupby(_ALIKE[kind], sort=False, dropna=False):
        first = part.iloc[0]
        positions = part.index.to_numpy(np.int64)
        name, about = match_gpu(str(first["gpu"]), declared)
        dtype = str(first["dtype"]) if "dtype" in part.columns else ""
        nothing = np.full(len(part), np.nan)
        measured = measured_seconds(kind, part)
        try:
            if not name:
                raise _CannotPriceError(f"GPU {first['gpu']} is not declared")
            price = _PRICES[kind](part, declared[name])
        except (_CannotPriceError, InputError) as error:
            why = str(error) if isinstance(error, _CannotPriceError) else error.problem
            skipped = np.where(reasons[positions] == "", why, reasons[positions])
            yield PricedGroup(
                *(kind, str(key[0]), dtype, positions, measured, nothing, nothing, ""),
                *(skipped, ()),
            )
            continue
        said = [about, *price.assumptions]
        unit = "bytes" if kind in ("streaming", "bandwidth") else "FLOPs"
        missing = np.where(np.isfinite(price.seconds), "", "has no size")
        too_much = f"has sizes that no kernel has: more than {LARGEST_WORK[unit]:g} {unit}"
        missing = np.where(price.size > LARGEST_WORK[unit], too_much, missing)
        if price.evidence is Evidence.ESTIMATED:
            said.append(f"coefficients transferred to {name}")
        yield PricedGroup(
            kernel_class=price.kernel_class,
            gpu=str(key[0]),
            dtype=dtype,
            positions=positions,
            measured_s=measured,
            predicted_s=price.seconds,
            size=price.size,
            size_unit=unit,
            reasons=np.where(reasons[positions] == "", missing, reasons[positions]),
            assumptions=tuple(text for text in said if text),
        )


def measured_seconds(kind: str, rows: pd.DataFrame) -> Floats:
    """What was measured, in seconds, shape (rows,); a bandwidth is turned into a time."""
    if kind == "bandwidth":
        rate = rows["gbps"].to_numpy(np.float64) * 1e9
        seconds: Floats = rows["bytes"].to_numpy(np.float64) / np.where(rate > 0, rate, np.nan)
        return seconds
    microseconds: Floats = rows["time_us"].to_numpy(np.float64)
    return microseconds * 1e-6


def _dtype_of(rows: pd.DataFrame, gpu: Gpu) -> tuple[str, tuple[str, ...]]:
    """Precision that prices a group, and what that assumes."""
    written = str(rows["dtype"].iloc[0])
    dtype = TRAINING_DTYPES.get(written.removesuffix("+quant"))
    if dtype is None:
        raise _CannotPriceError(f"{written} arithmetic is not priced")
    if dtype == "bf16" and "bf16" not in gpu.peak_flops and written != "bf16":
        dtype = "fp16"
    said = (
        (f"{written} priced as per-tensor fp8",) if dtype == "fp8" and written != "fp8_dyn" else ()
    )
    return dtype, said


def _gemms(rows: pd.DataFrame, gpu: Gpu) -> _Price:
    dtype, said = _dtype_of(rows, gpu)
    layout = str(rows["layout"].iloc[0]).rstrip("?")
    if layout not in ("TN", "NN", "NT"):
        raise _CannotPriceError(f"layout {layout} is unknown")
    if layout != rows["layout"].iloc[0]:
        said += (f"layout taken as {layout}",)
    sizes = rows[["m", "n", "k", "batch"]].to_numpy(np.int64)
    mask = np.full(len(rows), layout == "NT")
    no = np.zeros(len(rows), dtype=bool)
    flag = str(rows["flag"].iloc[0])
    accumulate = mask if "acc" in str(rows["impl"].iloc[0]) else no
    seconds, _, evidence = price_gemms(gpu, dtype, sizes, mask, accumulate, no)
    if not re.search(SUSTAINED_FLAGS, flag):
        burst, _, _ = price_gemms(gpu, dtype, sizes, mask, accumulate, no, sustained=False)
        throttled = 1.0 - np.exp(-BURST_PRODUCTS * burst / POWER_WINDOW_S)
        seconds = burst + throttled * (seconds - burst)
        said += ("timed in a short burst, at full clocks",)
    else:
        said += ("timed at the power limit",)
    if "uninit_w" in flag or "const_w" in flag:
        said += ("weights that draw less power than trained ones",)
    written = str(rows["dtype"].iloc[0])
    if written in CAST_INCLUDED or written.endswith("+quant"):
        m, k, batch = (rows[name].to_numpy(np.float64) for name in ("m", "k", "batch"))
        efficiency = cast_dram_efficiency(choose_gemm(gpu, dtype).fit)
        seconds += CAST_LAUNCH_S
        seconds += CAST_BYTES * batch * m * k / (gpu.memory_bandwidth_bytes_per_s * efficiency)
        said += ("includes casting the activation to fp8",)
    family = "batched_gemm" if (sizes[:, 3] > 1).any() else "gemm"
    name = f"{family}_{dtype}" if dtype.startswith("fp8") else family
    return _Price(name, seconds, 2.0 * sizes.astype(float).prod(axis=1), evidence, said)


def _grouped_gemms(rows: pd.DataFrame, gpu: Gpu) -> _Price:
    dtype, said = _dtype_of(rows, gpu)
    stage = str(rows["stage"].iloc[0])
    if stage not in STAGES:
        raise _CannotPriceError(f"stage {stage} is unknown")
    seconds = grouped_seconds(rows, gpu, dtype)
    size = rows[["groups", "m_per_group", "n", "k"]].to_numpy(np.float64).prod(axis=1)
    if re.search(ONE_KERNEL, str(rows["impl"].iloc[0])):
        said += ("all groups in one kernel",)
    name = f"grouped_gemm_{stage}" + (f"_{dtype}" if dtype.startswith("fp8") else "")
    evidence = grouped_evidence(gpu, choose_gemm(gpu, dtype).evidence)
    flops = 2.0 * len(STAGES[stage]) * size
    return _Price(name, seconds, flops, evidence, (*said, "timed at the power limit"))


def _attention(rows: pd.DataFrame, gpu: Gpu) -> _Price:
    dtype, said = _dtype_of(rows, gpu)
    impl, pass_, flag = (str(rows[name].iloc[0]) for name in ("impl", "pass", "flag"))
    kernel = attention_kernel(impl)
    if kernel == "flash1" and gpu.architecture == "volta":
        kernel = "flash"
    if kernel not in ATTENTION_SECTIONS:
        raise _CannotPriceError(f"{impl} is not a fused attention kernel of a training framework")
    if "main kernel only" in impl:
        raise _CannotPriceError("the main kernel of a backward pass without its two helpers")
    passes = [name for name in ("fwd", "bwd") if name in pass_.split("+")]
    if not passes or (kernel.startswith("serving") and passes != ["fwd"]):
        raise _CannotPriceError(f"pass {pass_} of {kernel} attention is unknown")
    shapes = rows[SHAPE].to_numpy(np.int64)
    # Serving kernels are fitted to whatever state their tables are in.
    long_run = bool(re.search(LONG_ATTENTION_FLAGS, flag)) and not kernel.startswith("serving")
    seconds = np.zeros(len(rows))
    for name in passes:
        part, _, evidence = price_attention(gpu, dtype, name, shapes, kernel, long_run)
        seconds += part
    if kernel.startswith("serving") and choose_attention(gpu, dtype, kernel).fit.name != gpu.name:
        evidence = Evidence.ESTIMATED
    said += (f"{impl or 'unnamed kernel'} priced as {kernel}",)
    if "deterministic" in flag:
        said += ("priced as the non-deterministic backward",)
    group = f"attention_{pass_}" + ("" if kernel == "flash" else f"_{kernel}")
    group += "_fp8" if dtype == "fp8" else ""
    return _Price(group, seconds, attention_flops(rows), evidence, said)


def _streaming(rows: pd.DataFrame, gpu: Gpu) -> _Price:
    op, pass_ = str(rows["op"].iloc[0]), str(rows["pass"].iloc[0])
    kind = streaming_kind(op, pass_, str(rows["impl"].iloc[0]))
    if not kind:
        raise _CannotPriceError(f"{op} {pass_} is not one of our kernels")
    moved = streaming_bytes(rows)
    known = np.where(np.isfinite(moved), moved, 0.0)
    sizes = np.stack([known.astype(np.int64), np.ones(len(rows), np.int64)], axis=1)
    seconds, _, measured = price_streaming(gpu, [kind] * len(rows), sizes)
    code = int(streaming_evidence(measured[:1])[0])
    seconds = np.where(np.isfinite(moved), seconds, math.nan)
    return _Price(f"streaming_{kind}", seconds, moved, tuple(Evidence)[code], ())


def _bandwidth(rows: pd.DataFrame, gpu: Gpu) -> _Price:
    moved = rows["bytes"].to_numpy(np.float64)
    known = np.where(np.isfinite(moved), moved, 0.0)
    sizes = np.stack([known.astype(np.int64), np.ones(len(rows), np.int64)], axis=1)
    seconds, _, _ = price_streaming(gpu, ["memcpy"] * len(rows), sizes)
    seconds = np.where(np.isfinite(moved) & (moved > gpu.l2_bytes), seconds, math.nan)
    return _Price("bandwidth", seconds, moved, Evidence.FITTED, ("priced as a copy",))


def _fused_moe(rows: pd.DataFrame, gpu: Gpu) -> _Price:
    raise _CannotPriceError("fused MoE layers of inference servers are not training kernels")


_PRICES: dict[str, Callable[[pd.DataFrame, Gpu], _Price]] = {
    "gemm": _gemms,
    "grouped_gemm": _grouped_gemms,
    "attention": _attention,
    "streaming": _streaming,
    "bandwidth": _bandwidth,
    "fused_moe": _fused_moe,
}
