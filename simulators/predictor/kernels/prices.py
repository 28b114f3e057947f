"""Many kernels in, many prices out: operations grouped by class, one formula each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels.attention import price_attention
from trainscout.simulators.predictor.kernels.coefficients import grouped_evidence
from trainscout.simulators.predictor.kernels.convolution import price_convolutions
from trainscout.simulators.predictor.kernels.gemm import price_gemms
from trainscout.simulators.predictor.kernels.streaming import price_streaming, streaming_evidence
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Convolution,
    Gemm,
    GroupedGemm,
    Kernel,
    Streaming,
)

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable

EVIDENCE_ORDER = tuple(Evidence)
_CODE = {evidence: code for code, evidence in enumerate(EVIDENCE_ORDER)}
_LAYOUTS = ("TN", "NN", "NT")
# Attention generations a training job may run; another, "serving", only appears in tables.
TRAINING_ATTENTION = ("flash", "flash2", "flash1")
# FlashAttention-2 against the first FlashAttention and its Triton version: about twice the speed
# (Dao 2023, arXiv 2307.08691, section 4.1, A100: 1.7-3.0 and 1.3-2.5 times, by shape and pass).
FLASH2_SPEEDUP = 2.0

# Hopper's tensor cores sum 8-bit products in fewer bits than fp32. Training frameworks keep that
# for forward products and add partial sums up in fp32 in both gradients (Transformer Engine's
# and torchao's defaults), which the tables of inference libraries do not show: "1.1x to 1.2x"
# (pytorch/ao issue 2377).
SPLIT_ACCUMULATORS = ("hopper",)
SPLIT_ACCUMULATION_FACTOR = 1.15

_GEMM_SIZES = attrgetter("m", "n", "k", "batch")
_GROUPED_SIZES = attrgetter("m_per_group", "n", "k", "groups")
_GROUPED_GRADIENT_SIZES = attrgetter("n", "k", "m_per_group", "groups")
_ATTENTION_SHAPE = attrgetter(
    "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal"
)
_STREAMING_SIZES = attrgetter("bytes", "launches")


@dataclass(frozen=True)
class KernelPrices:
    """Prices of n kernels, in the order they were given.

    ``seconds`` (float64, (n,)): device time of each, its launch floor on the device included.
    ``evidence`` (int8, (n,)): index into ``EVIDENCE_ORDER`` (0 measured, 1 fitted,
    2 estimated). ``memory_bound`` (float64, (n,), 0..1): DRAM time over total time.
    """

    seconds: NDArray[np.float64]
    evidence: NDArray[np.int8]
    memory_bound: NDArray[np.float64]


def price_kernels(
    gpu: Gpu, ops: Sequence[Kernel], measured: MeasuredTable | None = None
) -> KernelPrices:
    """Price every kernel on one GPU that runs nothing else, at its power limit.

    ``measured`` (``measured.load_measured``) takes precedence over the formulas.

    Raises:
        InputError: for a precision the GPU does not have, an unknown layout, pass or
            streaming class, or something that is not a kernel.
    """
    seconds = np.zeros(len(ops))
    memory_bound = np.zeros(len(ops))
    evidence = np.zeros(len(ops), dtype=np.int8)
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for position, op in enumerate(ops):
        groups.setdefault(_formula(op), []).append(position)
    for (formula, dtype, pass_, kernel), positions in groups.items():
        chosen = [ops[position] for position in positions]
        if formula == "gemm":
            prices = _gemms(gpu, dtype, chosen, group_launches=kernel != "one")
        elif formula == "attention":
            prices = _attention(gpu, dtype, pass_, kernel, chosen)
        elif formula == "convolution":
            prices = _convolutions(gpu, dtype, chosen)
        else:
            prices = _streaming(gpu, chosen)
        seconds[positions], memory_bound[positions], evidence[positions] = prices
    if measured is not None and len(ops):
        from trainscout.simulators.predictor.kernels.measured import correct

        factors, hit = correct(gpu, ops, measured)
        seconds *= factors
        memory_bound = np.minimum(memory_bound / factors, 1.0)
        evidence[hit] = _CODE[Evidence.MEASURED]
    return KernelPrices(seconds, evidence, memory_bound)


def _formula(op: Kernel) -> tuple[str, str, str, str]:
    """Formula, precision, pass and kernel of an operation; equal ones are priced together."""
    if isinstance(op, Gemm):
        return "gemm", op.dtype, "", ""
    if isinstance(op, GroupedGemm):
        return "gemm", op.dtype, "", "one" if op.one_kernel else ""
    if isinstance(op, Streaming):
        return "streaming", "", "", ""
    if isinstance(op, Attention):
        return "attention", op.dtype, op.pass_, op.kernel
    if isinstance(op, Convolution):
        return "convolution", op.dtype, "", ""
    allowed = "Gemm, GroupedGemm, Attention, Convolution or Streaming"
    raise InputError("ops", type(op).__name__, "is not a kernel", allowed)


_Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8] | int]


def _gemms(gpu: Gpu, dtype: str, ops: list[Kernel], *, group_launches: bool) -> _Columns:
    grouped = np.array([type(op) is GroupedGemm for op in ops])
    sizes = np.array([_gemm_sizes(op) for op in ops], dtype=np.int64)
    layouts = [op.layout for op in ops]  # type: ignore[union-attr]
    for layout in set(layouts):
        require_choice("gemm.layout", layout, _LAYOUTS)
    gradient = np.array([layout == "NT" for layout in layouts])
    accumulate = np.array([op.accumulate for op in ops])  # type: ignore[union-attr]
    seconds, share, found = price_gemms(
        gpu, dtype, sizes, gradient, accumulate, grouped, group_launches=group_launches
    )
    if dtype == "fp8" and gpu.architecture in SPLIT_ACCUMULATORS:
        forward = np.array([layout == "TN" for layout in layouts])
        factor = np.where(forward, 1.0, SPLIT_ACCUMULATION_FACTOR)
        seconds, share = seconds * factor, share / factor
    codes = _CODE[grouped_evidence(gpu, found)], _CODE[found]
    evidence = np.where(grouped, *codes).astype(np.int8)
    return seconds, share, evidence


def _gemm_sizes(op: Kernel) -> tuple[int, int, int, int]:
    """m, n, k of one product and how many there are."""
    sizes: tuple[int, int, int, int]
    if isinstance(op, GroupedGemm):
        # A grouped weight gradient sums over the group's rows.
        sizes = (_GROUPED_GRADIENT_SIZES if op.layout == "NT" else _GROUPED_SIZES)(op)
    else:
        sizes = _GEMM_SIZES(op)
    return sizes


def _attention(gpu: Gpu, dtype: str, pass_: str, kernel: str, ops: list[Kernel]) -> _Columns:
    require_choice("attention.pass_", pass_, ("fwd", "bwd"))
    require_choice("attention.kernel", kernel, TRAINING_ATTENTION)
    shapes = np.array([_ATTENTION_SHAPE(op) for op in ops], dtype=np.int64)
    if kernel != "flash1":
        seconds, share, found = price_attention(gpu, dtype, pass_, shapes, kernel)
        return seconds, share, _CODE[found]
    seconds, share, _ = price_attention(gpu, dtype, pass_, shapes, "flash2")
    return seconds * FLASH2_SPEEDUP, share / FLASH2_SPEEDUP, _CODE[Evidence.ESTIMATED]


def _convolutions(gpu: Gpu, dtype: str, ops: list[Kernel]) -> _Columns:
    seconds, share = price_convolutions(gpu, dtype, ops)  # type: ignore[arg-type]
    return seconds, share, _CODE[Evidence.ESTIMATED]


def _streaming(gpu: Gpu, ops: list[Kernel]) -> _Columns:
    sizes = np.array([_STREAMING_SIZES(op) for op in ops], dtype=np.int64)
    kinds = [op.kind for op in ops]  # type: ignore[union-attr]
    seconds, share, measured = price_streaming(gpu, kinds, sizes)
    return seconds, share, streaming_evidence(measured)
