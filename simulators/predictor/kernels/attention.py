"""Time of fused (flash) attention: work items over SMs, tensor and softmax time, DRAM.

Forward, one work item is a block of ``BLOCK`` queries of one head; backward, a block of keys.
With ``f = 2 (d + d_v)`` FLOPs for one query-key pair (x 2.5 backward), head sizes padded to
what the kernels tile,

    pair   = f / (peak of one SM x efficiency) + softmax
    item   = pairs of the item x pair + latency       x = items / SMs
    time   = max(longest item, item (x + partial_wave (ceil(x) - x)))

joined with the power limit and the DRAM time of the tensors as for GEMMs (on B200, layers of
Transformer Engine that fill seconds run both at 1110-1130 TFLOPS; SimuMax's table). A causal
item has half the pairs plus half of ``causal_overhead_tokens`` (masked blocks, and unequal
items that end apart), and the longest one all of them: with few heads per rank that item or a
partial wave decides.
FLOPs: Dao et al. 2022, section 3.1.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.gpu import Gpu

from .choice import choose_attention, sustained_flops_per_s
from .coefficients import AttentionCoefficients
from .gemm import ELEMENT_BYTES, POWER_EXPONENT, Floats, join

BLOCK = 128
HEAD_GRANULE = 32
# Beyond this head size the operands of a full block no longer fit the registers.
WIDE_HEAD = 128
BACKWARD_FLOPS = 2.5
OVERLAP_EXPONENT = 2.0
# Instructions of fp32 lanes that dropout of one probability takes, most of them for its random
# bits (Philox): seconds with dropout less those without, times the board's lanes, of
# FlashAttention-2 and cuDNN in PyTorch 2.11 on one H100 80 GB (SXM, CUDA 13.0, November 2026;
# 1,024 to 8,192 tokens, heads of 64 and 128, causal or not). Medians; they range from 9.6 to 14.6
# and 6.5 to 26, 30 to 36 and 17 to 25. FlashAttention-3 has no dropout: the newest kernel is
# cuDNN's then.
DROPOUT_INSTRUCTIONS = {"flash2": {"fwd": 12.0, "bwd": 16.0}, "flash": {"fwd": 34.0, "bwd": 20.0}}


def attention_seconds(
    shapes: NDArray[np.int64],
    backward: bool,
    element_bytes: float,
    coefficients: AttentionCoefficients,
    sms: int,
    peak_per_sm: float,
    reference_peak_per_sm: float,
    dram_bytes_per_s: float,
    sustained_flops_per_s: float = math.inf,
) -> tuple[Floats, Floats]:
    """Seconds and DRAM share of one pass, each of shape (ops,).

    ``shapes`` has shape (ops, 8): batch, heads, kv_heads, seq_q, seq_k, head_dim,
    head_dim_v, causal (0 or 1). ``sustained_flops_per_s``: what the board's power feeds for
    long (infinite in a burst).
    """
    batch, heads, kv_heads, seq_q, seq_k, d, d_v, causal = shapes.T.astype(np.float64)
    rows, inner = (seq_k, seq_q) if backward else (seq_q, seq_k)
    padded = np.ceil(d / HEAD_GRANULE) * HEAD_GRANULE + np.ceil(d_v / HEAD_GRANULE) * HEAD_GRANULE
    flops = 2.0 * padded * (BACKWARD_FLOPS if backward else 1.0)
    loss = (1.0 / coefficients.efficiency - 1.0) / reference_peak_per_sm
    pair_s = flops * (1.0 / peak_per_sm + loss) + coefficients.softmax_s_per_score
    pair_s = np.where(
        np.maximum(d, d_v) > WIDE_HEAD, pair_s * coefficients.wide_head_factor, pair_s
    )
    blocks = np.ceil(rows / BLOCK)
    masked = np.minimum(inner, coefficients.causal_overhead_tokens)
    average_pairs = BLOCK * np.where(causal > 0, (inner + masked) / 2, inner)
    filled = batch * heads * blocks / sms
    waves = filled + coefficients.partial_wave * (np.ceil(filled) - filled)
    longest = BLOCK * inner * pair_s + coefficients.item_latency_s
    compute = (average_pairs * pair_s + coefficients.item_latency_s) * waves
    compute = np.maximum(compute, longest)
    if sustained_flops_per_s < math.inf:
        work = 2.0 * batch * heads * seq_q * seq_k * (d + d_v) * np.where(causal > 0, 0.5, 1.0)
        work *= BACKWARD_FLOPS if backward else 1.0
        compute = join(compute, work / sustained_flops_per_s, POWER_EXPONENT)
    queries = batch * heads * seq_q * (d + d_v)
    keys = batch * kv_heads * seq_k * (d + d_v)
    if backward:
        # Reads q, k, v, o, dO, writes dq, dk, dv; dq is first accumulated in fp32.
        dram_bytes = element_bytes * (2.0 * queries + 2.0 * keys) + 8.0 * batch * heads * seq_q * d
    else:
        dram_bytes = element_bytes * (queries + keys)
    dram = dram_bytes / (dram_bytes_per_s * coefficients.dram_efficiency)
    seconds = join(compute, dram, OVERLAP_EXPONENT) + coefficients.launch_s
    return seconds, dram / seconds


def dropout_seconds(gpu: Gpu, shapes: NDArray[np.int64], pass_: str, kernel: str) -> Floats:
    """What dropout adds to one pass, shape (ops,); ``shapes`` and ``kernel`` as above.

    A fused multiply-add is two FLOPs of a lane and one instruction. Nothing of it hides behind
    the tensor cores in either library. Lanes of a GPU that declares none do a sixteenth of its
    tensor cores' FLOPs in 16 bits, as A100's.
    """
    batch, heads, _, seq_q, seq_k, _, _, causal = shapes.T.astype(np.float64)
    made = gpu.architecture.newest_attention if kernel == "flash" else kernel
    instructions = DROPOUT_INSTRUCTIONS["flash" if made == "flash" else "flash2"][pass_]
    scores = batch * heads * seq_q * seq_k * np.where(causal > 0, 0.5, 1.0)
    peaks = gpu.peak_flops
    lanes = (peaks.get("fp32") or (peaks.get("fp16") or gpu.peak("bf16")) / 16) / 2
    seconds: Floats = scores * instructions / lanes
    return seconds


@functools.lru_cache(maxsize=256)
def _machine(
    gpu: Gpu, precision: str, pass_: str, kernel: str
) -> tuple[AttentionCoefficients, float, float, Evidence]:
    choice = choose_attention(gpu, precision, kernel)
    peak = gpu.peak(precision) / gpu.sms
    reference = choice.fit.peak_per_sm(precision) or peak
    return choice.passes[pass_], peak, reference, choice.evidence


def price_attention(
    gpu: Gpu,
    precision: str,
    pass_: str,
    shapes: NDArray[np.int64],
    kernel: str = "flash",
    sustained: bool = True,
) -> tuple[Floats, Floats, Evidence]:
    """Seconds, DRAM share and evidence of one pass at one precision; ``shapes`` as above.

    ``kernel`` is the generation: "flash" the newest the GPU's training software has, "flash2"
    FlashAttention-2, "serving" an inference server's paged prefill (forward only).
    ``sustained`` False prices a burst too short for the power limit.

    Raises:
        InputError: when the GPU has no such arithmetic, or for an unknown generation.
    """
    coefficients, peak_per_sm, reference, evidence = _machine(gpu, precision, pass_, kernel)
    seconds, share = attention_seconds(
        shapes,
        pass_ == "bwd",
        ELEMENT_BYTES[precision],
        coefficients,
        gpu.sms,
        peak_per_sm,
        reference,
        gpu.memory_bandwidth_bytes_per_s,
        sustained_flops_per_s(gpu, precision) if sustained else math.inf,
    )
    return seconds, share, evidence
