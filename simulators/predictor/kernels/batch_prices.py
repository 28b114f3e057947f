"""The price of kernels of one class: one formula each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.errors import require_choice
from trainscout.simulators.predictor.question.gpu import Gpu

from .attention import dropout_seconds, price_attention
from .batches import Attentions, Batch, FusedProducts, Gemms, Streamings
from .choice import grouped_evidence
from .coefficients import GroupedCoefficients
from .convolution import price_convolutions
from .gemm import price_gemms
from .streaming import price_streaming

EVIDENCE_ORDER = tuple(Evidence)
CODE = {evidence: code for code, evidence in enumerate(EVIDENCE_ORDER)}
# Times of the first FlashAttention over those of the second, by head size: medians of causal
# passes, both together, of 1,024 to 16,384 tokens on A100 (Dao-AILab/flash-attention,
# flash2_a100_fwd_bwd_benchmark). Of its Triton version by pass: 1.3 to 1.5 forward, about 2
# backward (Dao 2023, arXiv 2307.08691, section 4.1).
FLASH1_HEADS, FLASH1_TIMES = (64, 128), (1.78, 2.28)
TRITON_TIMES = {"fwd": 1.4, "bwd": 2.0}
OLDER_ATTENTION = ("flash1", "flash1_triton")


@dataclass(frozen=True, eq=False, repr=False)
class KernelPrices:
    """Prices of n kernels, in the order they were given.

    ``seconds`` (float64, (n,)): device time of each, its launch floor on the device included.
    ``evidence`` (int8, (n,)): index into ``EVIDENCE_ORDER`` (0 measured, 1 fitted,
    2 estimated). ``memory_bound`` (float64, (n,), 0..1): DRAM time over total time.
    """

    seconds: NDArray[np.float64]
    evidence: NDArray[np.int8]
    memory_bound: NDArray[np.float64]


def price_batch(
    gpu: Gpu,
    batch: Batch,
    *,
    sustained: bool = True,
    as_training: bool = True,
    grouped_as: GroupedCoefficients | None = None,
) -> KernelPrices:
    """Price kernels of one formula; ``price_kernels`` says under which conditions.

    Args:
        sustained: False prices a burst too short for the power limit.
        as_training: 8-bit products of Transformer Engine, and gradients as it adds them up.
        grouped_as: in place of the GPU's own coefficients of grouped products.
    """
    if isinstance(batch, Gemms):
        found = _gemms(gpu, batch, sustained, as_training, grouped_as)
    elif isinstance(batch, Attentions):
        found = _attention(gpu, batch, sustained)
    elif isinstance(batch, Streamings):
        seconds, share, measured = price_streaming(gpu, batch.names, batch.sizes)
        # A measured class is a fitted price: one share for all sizes.
        codes = np.where(measured, CODE[Evidence.FITTED], CODE[Evidence.ESTIMATED])
        found = seconds, share, codes.astype(np.int8)
    elif isinstance(batch, FusedProducts):
        found = _fused_products(gpu, batch)
    else:
        seconds, share = price_convolutions(gpu, batch.dtype, batch.ops)
        found = seconds, share, CODE[Evidence.ESTIMATED]
    seconds, share, evidence = found
    if isinstance(evidence, int):
        evidence = np.full(len(seconds), evidence, dtype=np.int8)
    return KernelPrices(seconds, evidence, share)


_Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8] | int]


def _gemms(
    gpu: Gpu,
    batch: Gemms,
    sustained: bool,
    as_training: bool,
    grouped_as: GroupedCoefficients | None,
) -> _Columns:
    seconds, share, found = price_gemms(
        gpu,
        batch.dtype,
        batch.sizes,
        batch.layouts == "NT",
        batch.accumulate,
        batch.grouped,
        sustained=sustained,
        group_launches=not batch.one_kernel,
        grouped_as=grouped_as,
    )
    split = gpu.architecture.split_accumulation_factor
    if as_training and batch.dtype == "fp8" and split != 1:
        factor = np.where(batch.layouts == "TN", 1.0, split)
        seconds, share = seconds * factor, share / factor
    if as_training and batch.dtype == "fp8":
        # Scales take nothing off the time that a product waits for DRAM.
        dram_s = seconds * share
        seconds = np.maximum(seconds * gpu.architecture.per_tensor_factor, dram_s)
        share = dram_s / seconds
    codes = CODE[grouped_evidence(gpu, found)], CODE[found]
    return seconds, share, np.where(batch.grouped, *codes).astype(np.int8)


def _fused_products(gpu: Gpu, batch: FusedProducts) -> _Columns:
    """At the share of the peak that such kernels reach, their bytes apart."""
    shares = gpu.architecture.products
    require_choice("gemm.within", batch.within, shares)
    share = shares[batch.within]
    seconds = batch.flops / (gpu.peak(batch.dtype) * share.value)
    evidence = Evidence.FITTED if share.measured else Evidence.ESTIMATED
    return seconds, np.zeros(len(batch)), CODE[evidence]


def _attention(gpu: Gpu, batch: Attentions, sustained: bool) -> _Columns:
    kernel = batch.kernel
    name = "flash2" if kernel in OLDER_ATTENTION else kernel
    seconds, share, found = price_attention(
        gpu, batch.dtype, batch.pass_, batch.shapes, name, sustained
    )
    if kernel in OLDER_ATTENTION:
        found = Evidence.ESTIMATED
        if batch.dtype in ("fp32", "tf32"):
            # Neither FlashAttention has these: what stands for both is PyTorch's own kernel.
            times = np.ones(len(seconds))
        elif kernel == "flash1":
            times = np.interp(batch.shapes[:, 5], FLASH1_HEADS, FLASH1_TIMES)
        else:
            times = np.full(len(seconds), TRITON_TIMES[batch.pass_])
        seconds, share = seconds * times, share / times
    if batch.dropout:
        # Lanes draw as long beside either kernel.
        drawn = dropout_seconds(gpu, batch.shapes, batch.pass_, name)
        seconds, share = seconds + drawn, share * seconds / (seconds + drawn)
    return seconds, share, CODE[found]
