"""Which coefficients serve which GPU.

A GPU without a fit of its own borrows from the most similar one of its architecture, a GPU of an
architecture without any takes those of the median architecture: every coefficient is the median
over the architectures with fits, of each the median over its GPUs. Times scale with the declared
peaks, SM count and bandwidth, and the price is then flagged *estimated*.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.gpu import Gpu

from .coefficients import (
    ATTENTION_CLASS,
    ATTENTION_SECTIONS,
    PRECISION_CLASS,
    AttentionCoefficients,
    FittedGpu,
    GemmCoefficients,
    GroupedCoefficients,
    fitted_gpus,
)

# Classes that stand in where one has no fit, best first.
STAND_INS = {
    "fp4": ("fp8", "half"),
    "fp8_block": ("fp8", "half"),
    "fp8": ("half",),
    "tf32": ("half",),
}

# A GPU counts as the fitted one when SMs and per-SM peak agree this closely: the same die at
# the same clocks (A800 and A100, H800 and H100), whatever its memory and links.
SAME_DIE_TOLERANCE = 0.06


def family_of(gpu: Gpu) -> tuple[FittedGpu, ...]:
    """The fits that may serve a GPU: those of its architecture, else the median architecture's."""
    return fitted_gpus(gpu.architecture.name) or (median_architecture(gpu),)


def _distance(gpu: Gpu, fit: FittedGpu) -> tuple[float, float]:
    """Relative difference in SMs and in the per-SM 16-bit peak, as absolute logarithms."""
    peak = max(gpu.peak_flops.get(name, 0.0) for name in ("bf16", "fp16")) / gpu.sms
    reference = fit.peak_per_sm("bf16")
    sms = abs(math.log(gpu.sms / fit.sms))
    return sms, abs(math.log(peak / reference)) if peak and reference else 1.0


def _nearest(
    gpu: Gpu, candidates: list[FittedGpu], section: str, precision_class: str
) -> tuple[FittedGpu, Evidence] | None:
    """The candidate most like ``gpu``, and how far its coefficients can be trusted there."""
    if not candidates:
        return None
    best = min(
        candidates, key=lambda fit: (fit.name != gpu.name, sum(_distance(gpu, fit)), fit.name)
    )
    same_die = (
        best.architecture == gpu.architecture.name
        and max(_distance(gpu, best)) <= SAME_DIE_TOLERANCE
        and (section, precision_class) not in best.transferred
    )
    return best, Evidence.FITTED if same_die else Evidence.ESTIMATED


@dataclass(frozen=True, eq=False, repr=False)
class GemmChoice:
    """Coefficients that price one GPU's GEMMs, whose they are, and how far to trust them."""

    coefficients: GemmCoefficients
    fit: FittedGpu
    evidence: Evidence


def choose_gemm(gpu: Gpu, precision: str) -> GemmChoice:
    """The best GEMM coefficients for a GPU and precision.

    Its own, else another GPU's where it says so (``gpu.products_of``), else same architecture
    and precision first; then, for tensor-core types, the architecture's 16-bit set (tiles feed
    the tensor cores the same bytes); then another architecture.

    Raises:
        InputError: when the GPU has no such arithmetic, or that other GPU no fit.
    """
    gpu.peak(precision)
    wanted = PRECISION_CLASS[precision]
    family = [fit for fit in family_of(gpu) if fit.gemm] or [median_architecture(gpu)]
    if gpu.products_of:
        lenders = {fit.name: fit for fit in fitted_gpus() if fit.gemm}
        require_choice("gpu.products_of", gpu.products_of, lenders)
        family = [lenders.get(gpu.name, lenders[gpu.products_of])]
    for key in (wanted, *STAND_INS.get(wanted, ())):
        found = _nearest(gpu, [fit for fit in family if key in fit.gemm], "gemm", key)
        if found is not None:
            fit, evidence = found
            evidence = evidence if key == wanted else Evidence.ESTIMATED
            return GemmChoice(fit.gemm[key], fit, evidence)
    elsewhere = [fit for fit in fitted_gpus() if wanted in fit.gemm]
    borrowed = _nearest(gpu, elsewhere, "gemm", wanted)
    if borrowed is None:
        raise InputError("gpu.architecture", gpu.architecture.name, "has no GEMM coefficients")
    return GemmChoice(borrowed[0].gemm[wanted], borrowed[0], Evidence.ESTIMATED)


@functools.lru_cache(maxsize=256)
def sustained_flops_per_s(gpu: Gpu, precision: str) -> float:
    """FLOP/s that the board's power feeds for long, from the most similar GPU that says so.

    It carries over as a rate of one SM, so it vanishes where the tensor cores are cut.
    A precision without a sustained run takes the 16-bit share of its own peak: an operand of
    half the width takes about half the energy per FLOP, so both peaks draw alike. The SIMT
    types have no such limit.
    """
    wanted = PRECISION_CLASS[precision]
    if wanted == "fp32":
        return math.inf
    if gpu.sustained_fraction is not None:
        limited = gpu.sustained_fraction < 1
        return gpu.sustained_fraction * gpu.peak(precision) if limited else math.inf
    keys = (wanted, "half")
    powered = [fit for fit in family_of(gpu) if any(key in fit.sustained_fraction for key in keys)]
    found = _nearest(gpu, powered, "gemm", wanted)
    if found is None:
        return math.inf
    fit = found[0]
    fraction = next(fit.sustained_fraction[key] for key in keys if key in fit.sustained_fraction)
    return fraction * (fit.peak_per_sm(precision) or gpu.peak(precision) / gpu.sms) * gpu.sms


@functools.lru_cache(maxsize=256)
def choose_grouped(gpu: Gpu) -> GroupedCoefficients:
    """Grouped products' extra cost: of the GPU itself, else the mean over its architecture's
    fits, else over all (launching is the host's and the driver's work, not the die's)."""
    alike = fitted_gpus(gpu.architecture.name)
    for chosen in (
        lambda: [fit for fit in alike if fit.name == gpu.name],
        lambda: alike,
        fitted_gpus,
    ):
        found = [fit.grouped for fit in chosen() if fit.grouped is not None]
        if found:
            return GroupedCoefficients(
                group_s=sum(one.group_s for one in found) / len(found),
                weight_gradient_factor=sum(one.weight_gradient_factor for one in found)
                / len(found),
            )
    return GroupedCoefficients(group_s=0.0, weight_gradient_factor=1.0)


def grouped_evidence(gpu: Gpu, products: Evidence) -> Evidence:
    """Evidence of grouped products: fitted only where both they and single ones are."""
    alike = fitted_gpus(gpu.architecture.name)
    own = any(fit.grouped is not None and fit.name == gpu.name for fit in alike)
    return products if own else Evidence.ESTIMATED


@dataclass(frozen=True, eq=False, repr=False)
class AttentionChoice:
    """Coefficients of one attention generation by pass, whose they are, and their evidence."""

    passes: Mapping[str, AttentionCoefficients]
    fit: FittedGpu
    evidence: Evidence


def choose_attention(gpu: Gpu, precision: str, kernel: str = "flash") -> AttentionChoice:
    """The best coefficients for a GPU, a precision and a generation of attention kernels.

    Same architecture, or that whose kernels it runs, and precision first, then that of its
    products, then the architecture's 16-bit set. Where the architecture has no set for an older
    generation, its newest is that generation (Ampere's is FlashAttention-2).

    Raises:
        InputError: when the GPU has no such arithmetic, or for an unknown generation.
    """
    gpu.peak(precision)
    require_choice("attention.kernel", kernel, ATTENTION_SECTIONS)
    wanted = ATTENTION_CLASS[precision]
    lender = gpu.architecture.attention_of
    family = [fit for fit in (fitted_gpus(lender) if lender else family_of(gpu)) if fit.attention]
    family = family or [median_architecture(gpu)]
    for section in dict.fromkeys((ATTENTION_SECTIONS[kernel], ATTENTION_SECTIONS["flash"])):
        sets = [fit for fit in family if section in fit.attention]
        for key in dict.fromkeys((wanted, PRECISION_CLASS[precision], "half")):
            having = [fit for fit in sets if key in fit.attention[section]]
            found = _nearest(gpu, having, section, key)
            if found is not None:
                fit, evidence = found
                evidence = evidence if key == wanted else Evidence.ESTIMATED
                return AttentionChoice(fit.attention[section][key], fit, evidence)
    raise InputError("gpu.architecture", gpu.architecture.name, "has no attention coefficients")


@functools.lru_cache(maxsize=64)
def median_architecture(gpu: Gpu) -> FittedGpu:
    """The median architecture as a fit that a GPU may borrow: of those with all kernels fitted,
    its maker's where there are any, whose libraries it runs."""
    whole = [fit for fit in fitted_gpus() if fit.attention and fit.gemm]
    own = [fit for fit in whole if fit.vendor == gpu.architecture.vendor]
    return median_of(own or whole, gpu)


def median_of(fits: Iterable[FittedGpu], gpu: Gpu) -> FittedGpu:
    """The median of some fits, as shares of the peaks of a GPU and with its architecture's tiles.

    Everything counts as transferred, so that no price is better than *estimated*.
    """
    middle = _median([(fit.architecture, _coefficients(fit)) for fit in fits])
    tiles = gpu.architecture.gemm_tiles
    gemm = {}
    for precision, values in middle["gemm"].items():
        known = values["tile_efficiency"]
        shares = {tile: known[tile] for tile in tiles if tile in known} or known
        gemm[precision] = GemmCoefficients(**{**values, "tile_efficiency": shares})
    attention = {
        section: {
            precision: {name: AttentionCoefficients(**values) for name, values in passes.items()}
            for precision, passes in sets.items()
        }
        for section, sets in middle["attention"].items()
    }
    measured = [("gemm", precision) for precision in gemm]
    measured += [(section, precision) for section in attention for precision in attention[section]]
    return FittedGpu(
        name="the median architecture",
        architecture=gpu.architecture.name,
        sms=gpu.sms,
        peak_flops=gpu.peak_flops,
        gemm=gemm,
        attention=attention,
        sustained_fraction=middle["sustained_fraction"],
        transferred=frozenset(measured),
    )


def _coefficients(fit: FittedGpu) -> dict[str, Any]:
    values = dataclasses.asdict(fit)
    return {name: values[name] for name in ("gemm", "attention", "sustained_fraction")}


def _median(found: Sequence[tuple[str, Any]]) -> Any:
    """Entry by entry of nested mappings, the median over architectures of those over GPUs."""
    if isinstance(found[0][1], Mapping):
        names = dict.fromkeys(name for _, entries in found for name in entries)
        return {
            name: _median([(of, entries[name]) for of, entries in found if name in entries])
            for name in names
        }
    by_architecture = defaultdict(list)
    for architecture, value in found:
        by_architecture[architecture].append(value)
    return median(median(values) for values in by_architecture.values())
