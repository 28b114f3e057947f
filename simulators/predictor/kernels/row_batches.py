"""What the rows of a measured table ran, as the batches that predictions price.

The rows of one group share GPU, precision, implementation and flags (``ALIKE``), so what has to
be assumed of them is said once. A group that nothing here runs keeps the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.gpu import Gpu

from .attention import BACKWARD_FLOPS
from .batches import LAYOUTS, Attentions, Batch, Gemms, Streamings
from .choice import choose_gemm
from .coefficients import ATTENTION_SECTIONS
from .gemm import ELEMENT_BYTES
from .measured_rows import (
    CAST_INCLUDED,
    CAST_LAUNCH_S,
    SUSTAINED_FLAGS,
    TRAINING_DTYPES,
    attention_kernel,
    streaming_bytes,
    streaming_kind,
)

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# What makes the rows of one group alike, by class.
ALIKE = {
    "gemm": ["gpu", "dtype", "impl", "flag", "layout"],
    "grouped_gemm": ["gpu", "dtype", "impl", "flag", "stage"],
    "attention": ["gpu", "dtype", "impl", "flag", "pass"],
    "streaming": ["gpu", "dtype", "impl", "flag", "op", "pass"],
    "bandwidth": ["gpu", "benchmark"],
    "fused_moe": ["gpu"],
}
ATTENTION_SHAPE = [
    *("batch", "heads", "kv_heads", "seq_q", "seq_k"),
    *("head_dim", "head_dim_v", "causal"),
]
# Attention benchmarks pause between kernels; only these rows met the power limit.
LONG_ATTENTION_FLAGS = "sustained|in_situ"
# Layouts of the products that a stage of grouped ones consists of.
STAGES = {
    "fwd": ("TN",),
    "bwd_grad_act": ("NN",),
    "bwd_grad_w": ("NT",),
    "fwd+bwd": ("TN", "NN", "NT"),
}
# Implementations that compute all groups in one kernel, where others launch each.
ONE_KERNEL = r"DeepGEMM|m_grouped|_grouped_mm"


@dataclass(frozen=True)
class RowBatches:
    """What each row of a group ran: a kernel of every batch, one after another.

    ``kernel_class`` names the kernels in reports, ``size`` (rows,) is their FLOPs, or bytes for
    memory-bound ones. ``long``: timed long enough to meet the power limit; a benchmark that
    ``pauses`` between kernels never does. ``others_s`` (rows,) is time that other kernels took.
    """

    kernel_class: str
    batches: tuple[Batch, ...]
    size: Floats
    assumptions: tuple[str, ...] = ()
    long: bool = True
    pauses: bool = False
    others_s: Floats | float = 0.0


class CannotPriceError(Exception):
    """A group has no price; the text says why."""


def row_batches(kind: str, rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    """The kernels of rows that are ``ALIKE``, of one class of tables, on their GPU.

    Raises:
        CannotPriceError: for rows of what no formula prices.
    """
    return _BATCHES[kind](rows, gpu)


def attention_flops(rows: pd.DataFrame) -> Floats:
    """FLOPs of each row by the usual convention (halved when causal), shape (rows,)."""
    flops = 2.0 * rows["batch"] * rows["heads"] * rows["seq_q"] * rows["seq_k"]
    flops *= (rows["head_dim"] + rows["head_dim_v"]) * np.where(rows["causal"] > 0, 0.5, 1.0)
    factor = {"fwd": 1.0, "bwd": BACKWARD_FLOPS, "fwd+bwd": 1.0 + BACKWARD_FLOPS}
    return (flops * rows["pass"].map(factor)).to_numpy(np.float64)


def grouped_batches(rows: pd.DataFrame, dtype: str) -> tuple[Gemms, ...]:
    """Grouped products of one stage, implementation and flag, a batch for each layout.

    Tables give the forward product's dimensions for every stage. A gradient accumulates into
    fp32 unless the rows' flag says that their main gradient is 16-bit.
    """
    first = rows.iloc[0]
    count, m, n, k = rows[["groups", "m_per_group", "n", "k"]].round().to_numpy(np.int64).T
    columns = {"TN": (m, n, k, count), "NN": (m, k, n, count), "NT": (n, k, m, count)}
    main = 2 if "main_grad=bf16" in str(first["flag"]) else 4
    return tuple(
        Gemms(
            dtype,
            np.stack(columns[layout], axis=1),
            np.full(len(rows), layout),
            np.full(len(rows), main if layout == "NT" else 0),
            np.ones(len(rows), dtype=bool),
            one_kernel=bool(re.search(ONE_KERNEL, str(first["impl"]))),
        )
        for layout in STAGES[str(first["stage"])]
    )


def _dtype_of(rows: pd.DataFrame, gpu: Gpu) -> tuple[str, tuple[str, ...]]:
    """Precision that prices a group, and what that assumes."""
    written = str(rows["dtype"].iloc[0])
    dtype = TRAINING_DTYPES.get(written.removesuffix("+quant"))
    if dtype is None:
        raise CannotPriceError(f"{written} arithmetic is not priced")
    if dtype == "bf16" and "bf16" not in gpu.peak_flops and written != "bf16":
        dtype = "fp16"
    stated = (
        (f"{written} priced as per-tensor fp8",) if dtype == "fp8" and written != "fp8_dyn" else ()
    )
    return dtype, stated


def _gemms(rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    dtype, stated = _dtype_of(rows, gpu)
    written, impl, flag = (str(rows[name].iloc[0]) for name in ("layout", "impl", "flag"))
    layout = written.rstrip("?")
    if layout not in LAYOUTS:
        raise CannotPriceError(f"layout {layout} is unknown")
    if layout != written:
        stated += (f"layout taken as {layout}",)
    sizes = rows[["m", "n", "k", "batch"]].to_numpy(np.int64)
    no = np.zeros(len(rows), dtype=bool)
    main = 0 if layout != "NT" or "acc" not in impl else 2 if "fp16-acc" in impl else 4
    accumulate = np.full(len(rows), main)
    long = bool(re.search(SUSTAINED_FLAGS, flag))
    stated += ("timed at the power limit" if long else "timed in a short burst, at full clocks",)
    if "uninit_w" in flag or "const_w" in flag:
        stated += ("weights that draw less power than trained ones",)
    cast_s: Floats | float = 0.0
    precision = str(rows["dtype"].iloc[0])
    if precision in CAST_INCLUDED or precision.endswith("+quant"):
        m, k, batch = (rows[name].to_numpy(np.float64) for name in ("m", "k", "batch"))
        # A third where it is not fitted.
        efficiency = choose_gemm(gpu, dtype).fit.cast_dram_efficiency or 1.0 / 3.0
        moved = (2 + ELEMENT_BYTES[dtype]) * batch * m * k
        cast_s = CAST_LAUNCH_S + moved / (gpu.memory_bandwidth_bytes_per_s * efficiency)
        stated += ("includes casting the activation to fp8",)
    family = "batched_gemm" if (sizes[:, 3] > 1).any() else "gemm"
    return RowBatches(
        f"{family}_{dtype}" if dtype.startswith(("fp8", "fp4")) else family,
        (Gemms(dtype, sizes, np.full(len(rows), layout), accumulate, no),),
        2.0 * sizes.astype(float).prod(axis=1),
        stated,
        long=long,
        others_s=cast_s,
    )


def _grouped_gemms(rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    dtype, stated = _dtype_of(rows, gpu)
    stage = str(rows["stage"].iloc[0])
    if stage not in STAGES:
        raise CannotPriceError(f"stage {stage} is unknown")
    batches = grouped_batches(rows, dtype)
    size = rows[["groups", "m_per_group", "n", "k"]].to_numpy(np.float64).prod(axis=1)
    if batches[0].one_kernel:
        stated += ("all groups in one kernel",)
    name = f"grouped_gemm_{stage}" + (f"_{dtype}" if dtype.startswith("fp8") else "")
    stated += ("timed at the power limit",)
    return RowBatches(name, batches, 2.0 * len(batches) * size, stated)


def _attention(rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    dtype, stated = _dtype_of(rows, gpu)
    impl, pass_, flag = (str(rows[name].iloc[0]) for name in ("impl", "pass", "flag"))
    kernel = attention_kernel(impl)
    if kernel == "flash1" == gpu.architecture.newest_attention:
        kernel = "flash"
    if kernel not in ATTENTION_SECTIONS:
        raise CannotPriceError(f"{impl} is not a fused attention kernel of a training framework")
    if "main kernel only" in impl:
        raise CannotPriceError("the main kernel of a backward pass without its two helpers")
    passes = [name for name in ("fwd", "bwd") if name in pass_.split("+")]
    if not passes or (kernel.startswith("serving") and passes != ["fwd"]):
        raise CannotPriceError(f"pass {pass_} of {kernel} attention is unknown")
    shapes = rows[ATTENTION_SHAPE].to_numpy(np.int64)
    # Serving kernels are fitted to whatever state their tables are in.
    long = bool(re.search(LONG_ATTENTION_FLAGS, flag)) and not kernel.startswith("serving")
    stated += (f"{impl or 'unnamed kernel'} priced as {kernel}",)
    if "deterministic" in flag:
        stated += ("priced as the non-deterministic backward",)
    group = f"attention_{pass_}" + ("" if kernel == "flash" else f"_{kernel}")
    return RowBatches(
        group + ("_fp8" if dtype == "fp8" else ""),
        tuple(Attentions(dtype, name, kernel, shapes) for name in passes),
        attention_flops(rows),
        stated,
        long=long,
        pauses=True,
    )


def _streaming(rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    op, pass_ = str(rows["op"].iloc[0]), str(rows["pass"].iloc[0])
    kind = streaming_kind(op, pass_, str(rows["impl"].iloc[0]))
    if not kind:
        raise CannotPriceError(f"{op} {pass_} is not one of our kernels")
    moved = streaming_bytes(rows)
    return RowBatches(f"streaming_{kind}", (_moving(kind, moved),), moved)


def _bandwidth(rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    moved = rows["bytes"].to_numpy(np.float64)
    batch = _moving("memcpy", moved)
    # What the L2 holds is not the DRAM's bandwidth.
    return RowBatches(
        "bandwidth", (batch,), np.where(moved > gpu.l2_bytes, moved, np.nan), ("priced as a copy",)
    )


def _moving(kind: str, moved: Floats) -> Streamings:
    """One launch a row; unknown bytes are priced as none."""
    known = np.where(np.isfinite(moved), moved, 0.0).astype(np.int64)
    sizes = np.stack([known, np.ones(len(moved), np.int64)], axis=1)
    return Streamings((kind,) * len(moved), sizes)


def _fused_moe(rows: pd.DataFrame, gpu: Gpu) -> RowBatches:
    raise CannotPriceError("fused MoE layers of inference servers are not training kernels")


_BATCHES: dict[str, Callable[[pd.DataFrame, Gpu], RowBatches]] = {
    "gemm": _gemms,
    "grouped_gemm": _grouped_gemms,
    "attention": _attention,
    "streaming": _streaming,
    "bandwidth": _bandwidth,
    "fused_moe": _fused_moe,
}
