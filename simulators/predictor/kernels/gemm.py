"""Time of matrix multiplications: tiles, waves, DRAM and a launch floor.

For each tile shape ``a x b``, made by one SM or by two together,

    tiles  = ceil(m / a) ceil(n / b) batch            x = tiles / slots
    waves  = max(1, x + partial_wave (ceil(x) - x))
    loop   = 2 a b ceil_g(k) / (peak of its SMs x efficiency)      g: INNER_GRANULE
    compute = waves (loop + latency + a b epilogue)

or, with fewer tiles than slots, ``s <= 1 / x`` workers share the inner dimension of a tile,

    compute = loop / s + latency + a b epilogue + s x traffic of the partial sums

at the best ``s``, not rounded: libraries hand out the inner dimension in small pieces. Of all
these the library is taken to pick the fastest. With the DRAM time of operands and result

    time = (compute^q + dram^q)^(1/q) + launch

so it never beats the roofline (efficiency <= 1, norm >= maximum). The main loop's loss
against peak is a time (feeding the tensor cores), so on an SM with a slower tensor core, such
as H20's, it shrinks relative to the useful work.

That is a burst at full clocks. Training repeats products for seconds, and then the board's
power limits the FLOP rate: Hopper and Blackwell lower their clocks until energy per FLOP times
rate meets the cap. The sustained state is therefore a third roof beside compute and DRAM,

    compute_sustained = (compute^8 + (FLOPs / sustained rate)^8)^(1/8)

with the rate fitted to runs long enough to reach the cap (``sustained`` in ``fitted/*.yaml``).
Slow products draw little power and keep their burst time, which is what was measured: H200 at
691 W against bursts loses 1.07x at 1e10 FLOPs, 1.15x at 1e11, nothing where bursts already
last long enough to throttle (ai-dynamo/aiconfigurator, vLLM 0.22 and TensorRT-LLM 1.3 tables).

Grouped products (experts) share their waves, but Transformer Engine launches each on its own:
what that costs beyond the shared waves is a time per group, fitted like the slowdown of the
grouped weight gradient (``grouped`` in ``fitted/*.yaml``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.gpu import Gpu

from .choice import choose_gemm, choose_grouped, sustained_flops_per_s
from .coefficients import GemmCoefficients, GroupedCoefficients

Floats = NDArray[np.float64]

# Elements of the inner dimension that a tile's loop takes at once. Kernels for CUDA cores take 8,
# as CUTLASS's SIMT tiles do: taken as 64, products of 64 < k < 128 are 22 % too slow on H100 and
# 36 % on A100-PCIE (medians of 178 and 207 rows of sitar-lab/NeuSight; 3 % either way with 8).
INNER_GRANULE = 64
SIMT_INNER_GRANULE = 8
SMALLEST_SPLIT = 256
# No published search for the fastest matrix product sustains more of the dense peak: V100
# 0.90 (DeepBench), A40 0.90 (vidur), A100 0.87, H100 0.80, B200 0.78 (stas00/ml-engineering);
# a main loop without its prologue and epilogue may come slightly closer.
LOOP_CEILING = 0.92
# How sharply the power limit sets in; 7.6 when fitted freely to H200, 5-11 on Blackwell.
POWER_EXPONENT = 8.0
# Four bits, and a scale of eight for 16 of them.
ELEMENT_BYTES = {
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_block": 1,
    "mxfp8": 1,
    "fp4": 0.5625,
    "tf32": 4,
    "fp32": 4,
}

# Weight gradient against forward at equal dimensions, fp32 accumulation included: throughput
# ratio 0.95 median on A100-PCIe and on B200 (MooreThreads/SimuMax, 2 x 61 and 2 x 143 shapes).
WEIGHT_GRADIENT_FACTOR = 1.05
# Elements from which on tensor cores load 16 bytes at a time.
ALIGNED = 8


@dataclass(frozen=True)
class GemmRates:
    """Hardware rates the tile model needs: SMs, FLOP/s of one SM, DRAM bytes/s.

    ``reference_peak_per_sm`` is the per-SM peak of the GPU the coefficients were fitted on,
    ``sustained_flops_per_s`` what the whole board's power feeds for long (may be infinite),
    ``reached_per_sm`` what the best tile reaches, where it was measured (else 0);
    ``inner_granule``: what a loop takes of the inner dimension at a time.
    """

    sms: int
    peak_per_sm: float
    dram_bytes_per_s: float
    reference_peak_per_sm: float
    sustained_flops_per_s: float
    reached_per_sm: float = 0.0
    inner_granule: int = INNER_GRANULE


@dataclass(frozen=True, eq=False, repr=False)
class TileVariants:
    """Every (tile, split) the library may choose, as rows of shape (1, variants)."""

    rows: Floats
    columns: Floats
    slots: Floats
    loop_s_per_k: Floats
    fixed_s: Floats
    l2_s_per_k: Floats


def tile_variants(coefficients: GemmCoefficients, rates: GemmRates) -> TileVariants:
    """Expand coefficients into the per-variant constants of one GPU."""
    shapes: set[tuple[int, int, int, float]] = set()
    for name, efficiency in coefficients.tile_efficiency.items():
        sides, _, together = name.partition("@")
        first, second = (int(side) for side in sides.split("x"))
        shapes.add((first, second, int(together or 1), efficiency))
        shapes.add((second, first, int(together or 1), efficiency))
    table = np.array(sorted(shapes), dtype=np.float64).T[:, None, :]
    rows, columns, together, efficiency = table
    # Useful time, plus the reference GPU's loss carried over as a time.
    loss = (1.0 / efficiency - 1.0) / rates.reference_peak_per_sm
    loss = np.maximum(loss, (1.0 / LOOP_CEILING - 1.0) / rates.peak_per_sm)
    s_per_flop = 1.0 / rates.peak_per_sm + loss
    if rates.reached_per_sm:
        s_per_flop /= s_per_flop.min() * rates.reached_per_sm
    area = rows * columns / together
    return TileVariants(
        rows=rows,
        columns=columns,
        slots=np.floor(rates.sms / together),
        loop_s_per_k=2.0 * area * s_per_flop,
        fixed_s=coefficients.tile_latency_s + area * coefficients.epilogue_s_per_element,
        l2_s_per_k=(rows + columns) / (coefficients.l2_bytes_per_s_per_sm * rates.sms),
    )


def compute_seconds(
    m: Floats,
    n: Floats,
    k: Floats,
    batch: Floats,
    element_bytes: float,
    variants: TileVariants,
    coefficients: GemmCoefficients,
    rates: GemmRates,
) -> Floats:
    """Seconds of the compute side of each GEMM, shape (ops,); sizes are (ops,)."""
    m, n, k, batch = m[:, None], n[:, None], k[:, None], batch[:, None]
    output_tiles = np.ceil(m / variants.rows) * np.ceil(n / variants.columns) * batch
    filled = output_tiles / variants.slots
    waves = filled + coefficients.partial_wave * (np.ceil(filled) - filled)
    np.maximum(waves, 1.0, out=waves)
    inner = np.ceil(k / rates.inner_granule) * rates.inner_granule
    seconds = waves * (inner * variants.loop_s_per_k + variants.fixed_s)
    # Partial sums are fp32, written once and read once by the reduction.
    sums_s = (m * n * batch) * (8.0 * coefficients.split_traffic / rates.dram_bytes_per_s)
    room = np.minimum(1.0 / filled, k / SMALLEST_SPLIT)
    splits = np.minimum(np.sqrt(k * variants.loop_s_per_k / sums_s), room)
    split_s = k * variants.loop_s_per_k / splits + variants.fixed_s + splits * sums_s
    np.minimum(seconds, split_s, out=seconds, where=splits > 1.0)
    operand = output_tiles * (k * element_bytes * variants.l2_s_per_k)
    np.maximum(seconds, operand, out=seconds)
    best: Floats = seconds.min(axis=1)
    return best


def join(compute: Floats, dram: Floats, exponent: float) -> Floats:
    """``(compute^q + dram^q)^(1/q)``, computed without overflow; never below either."""
    larger = np.maximum(compute, dram)
    ratio = np.minimum(compute, dram) / larger
    joined: Floats = larger * (1.0 + ratio**exponent) ** (1.0 / exponent)
    return joined


def misaligned_factor(contiguous: NDArray[np.int64], factors: Mapping[str, float]) -> Floats:
    """Slowdown when tensor cores cannot load 16 bytes at a time, shape (ops,).

    ``contiguous`` holds the greatest common divisor of the dimensions that lie contiguously
    in memory, ``factors`` the slowdown where it is a multiple of so many elements.
    """
    factor = np.ones(len(contiguous))
    for multiple in sorted(map(int, factors)):
        factor[contiguous % multiple == 0] = factors[str(multiple)]
    factor[contiguous % ALIGNED == 0] = 1.0
    return factor


def inner_granule(precision: str) -> int:
    """Elements of the inner dimension that a tile's loop takes at a time."""
    return SIMT_INNER_GRANULE if precision == "fp32" else INNER_GRANULE


@functools.lru_cache(maxsize=256)
def _machine(
    gpu: Gpu, precision: str
) -> tuple[GemmCoefficients, GemmRates, TileVariants, Evidence]:
    choice = choose_gemm(gpu, precision)
    peak_per_sm = gpu.peak(precision) / gpu.sms
    borrowed = choice.fit.name != gpu.name and precision != "fp32"
    rates = GemmRates(
        sms=gpu.sms,
        peak_per_sm=peak_per_sm,
        dram_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        reference_peak_per_sm=choice.fit.peak_per_sm(precision) or peak_per_sm,
        sustained_flops_per_s=sustained_flops_per_s(gpu, precision),
        reached_per_sm=borrowed * (gpu.products_reach or 0.0) * peak_per_sm,
        inner_granule=inner_granule(precision),
    )
    return choice.coefficients, rates, tile_variants(choice.coefficients, rates), choice.evidence


def price_gemms(
    gpu: Gpu,
    precision: str,
    sizes: NDArray[np.int64],
    weight_gradient: NDArray[np.bool_],
    accumulate: NDArray[np.int64],
    grouped: NDArray[np.bool_],
    sustained: bool = True,
    group_launches: bool = True,
    grouped_as: GroupedCoefficients | None = None,
    dram_bytes: Floats | None = None,
) -> tuple[Floats, Floats, Evidence]:
    """Seconds, DRAM share and evidence of GEMMs of one precision.

    ``sizes`` has shape (ops, 4): m, n, k and the number of equal products in the launch;
    the masks have shape (ops,). ``weight_gradient`` marks layout NT, ``accumulate`` a result
    added into fp32, ``grouped`` products that share a launch but not their operands.
    ``sustained`` False prices a burst too short for the power limit, ``group_launches`` False
    groups that one kernel computes instead of one product after another. ``grouped_as``
    replaces the GPU's own coefficients of grouped products, ``dram_bytes`` (ops,) what operands
    and result move, for products whose operand overlaps itself.

    Raises:
        InputError: when the GPU has no such arithmetic.
    """
    coefficients, rates, variants, evidence = _machine(gpu, precision)
    groups = grouped_as or choose_grouped(gpu)
    m, n, k, batch = sizes.T.astype(np.float64)
    element = ELEMENT_BYTES[precision]
    compute = compute_seconds(m, n, k, batch, element, variants, coefficients, rates)
    # Rows of the left operand are contiguous in m only for the weight gradient.
    contiguous = np.gcd(sizes[:, 1], np.where(weight_gradient, sizes[:, 0], sizes[:, 2]))
    if precision == "fp32":
        # A matrix with a vector has kernels of its own (cuBLAS's gemv) that fill no tiles.
        vector = np.minimum(m, n) == 1.0
        compute[vector] = (2.0 * m * n * k * batch)[vector] / gpu.peak(precision)
    else:
        compute *= misaligned_factor(contiguous, gpu.architecture.misaligned_factors)
    compute *= np.where((batch > 1) & ~grouped, coefficients.batched_factor, 1.0)
    if sustained and rates.sustained_flops_per_s < np.inf:
        powered = (2.0 * m * n * k * batch) / rates.sustained_flops_per_s
        compute = join(compute, powered, POWER_EXPONENT)
    # A group of one is the product that a plain layer has.
    several = grouped & (batch > 1)
    factor = np.where(several, groups.weight_gradient_factor, WEIGHT_GRADIENT_FACTOR)
    compute *= np.where(weight_gradient, factor, 1.0)
    if dram_bytes is None:
        # fp8 products are written in 16 bits; what a result is added into is read and written.
        result = np.where(accumulate > 0, 2.0 * accumulate, max(element, 2))
        dram_bytes = batch * (element * k * (m + n) + result * m * n)
    dram = dram_bytes / (rates.dram_bytes_per_s * coefficients.dram_efficiency)
    seconds = join(compute, dram, coefficients.overlap_exponent) + coefficients.launch_s
    if group_launches:
        seconds += np.where(grouped, batch * groups.group_s, 0.0)
    return seconds, dram / seconds, evidence
