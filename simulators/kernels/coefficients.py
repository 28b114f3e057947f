"""Fitted coefficients of the kernel formulas, and which set serves which GPU.

``fitted/*.yaml`` are written by ``python -m simulators.kernels.fit``: one file per measured
GPU, with the command, the provenance and the residuals beside the numbers. A GPU without a
file of its own borrows from the most similar one of its architecture; times scale with the
declared peaks, SM count and bandwidth, and the price is then flagged *estimated*.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, TypeVar

import yaml

from simulators.errors import InputError
from simulators.job import Gpu
from simulators.prediction import Evidence

# bf16 and fp16 run at the same rate on every tensor core generation that has both.
PRECISION_CLASS = {"bf16": "half", "fp16": "half", "fp8": "fp8", "tf32": "tf32", "fp32": "fp32"}

# A GPU counts as the fitted one when SMs and per-SM peak agree this closely: the same die at
# the same clocks (A800 and A100, H800 and H100), whatever its memory and links.
SAME_DIE_TOLERANCE = 0.06


@dataclass(frozen=True)
class GemmCoefficients:
    """Parameters of the tile model (``gemm.py``) for one precision.

    ``tile_efficiency`` maps ``"128x256"`` (either orientation) to the fraction of one SM's
    peak a tile's main loop reaches. ``partial_wave`` 0..1: how much of a full wave a partly
    filled one costs beyond its own tiles. ``tile_latency_s`` and ``epilogue_s_per_element``
    are paid once per tile. ``l2_bytes_per_s_per_sm`` bounds operand traffic.
    ``split_traffic`` weighs the partial sums of a split along k. ``overlap_exponent`` is the
    norm that joins compute and DRAM time (infinite: perfect overlap).
    """

    tile_efficiency: Mapping[str, float]
    partial_wave: float
    tile_latency_s: float
    epilogue_s_per_element: float
    l2_bytes_per_s_per_sm: float
    dram_efficiency: float
    split_traffic: float
    overlap_exponent: float
    launch_s: float


@dataclass(frozen=True)
class AttentionCoefficients:
    """Parameters of the flash-attention model (``attention.py``) for one pass.

    ``efficiency`` is the main loop's fraction of tensor peak, ``softmax_s_per_score`` one SM's
    extra time for one query-key pair of one head, ``partial_wave`` as for GEMMs,
    ``item_latency_s`` the fixed time of one work item, ``dram_efficiency`` the fraction of
    DRAM bandwidth reached by the tensors' traffic, ``causal_overhead_tokens`` how many keys
    beyond half of them a causal query costs twice over, ``wide_head_factor`` (>= 1) what heads
    wider than 128 lose to smaller blocks, ``launch_s`` the floor.
    """

    efficiency: float
    softmax_s_per_score: float
    partial_wave: float
    item_latency_s: float
    dram_efficiency: float
    causal_overhead_tokens: float
    wide_head_factor: float
    launch_s: float


@dataclass(frozen=True)
class FittedGpu:
    """One ``fitted/*.yaml``: the GPU it was measured on and its coefficients.

    ``gemm`` is by precision class, ``attention`` by precision class and pass; ``transferred``
    holds the (section, precision class) pairs measured on another GPU than this one.
    """

    name: str
    architecture: str
    sms: int
    peak_flops: Mapping[str, float]
    gemm: Mapping[str, GemmCoefficients]
    attention: Mapping[str, Mapping[str, AttentionCoefficients]]
    transferred: frozenset[tuple[str, str]] = frozenset()

    def peak_per_sm(self, precision: str) -> float:
        """Dense peak of one SM in FLOP/s; 16-bit types stand in for each other."""
        peak = self.peak_flops.get(precision)
        if peak is None and PRECISION_CLASS[precision] == "half":
            peak = max(self.peak_flops.get(name, 0.0) for name in ("bf16", "fp16"))
        return (peak or 0.0) / self.sms


Coefficients = TypeVar("Coefficients")


def parse(cls: type[Coefficients], values: Mapping[str, Any], where: str) -> Coefficients:
    """Build a coefficient set from YAML, refusing missing, unknown and non-finite values.

    Raises:
        InputError: naming the file and the entry.
    """
    names = [item.name for item in fields(cls)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise InputError(f"{where}.{name}", values[name], "is not a coefficient", names)
    for name in names:
        value = values.get(name)
        for entry in value.values() if isinstance(value, dict) else [value]:
            if not isinstance(entry, (int, float)) or not math.isfinite(entry) or entry < 0:
                raise InputError(f"{where}.{name}", value, "is not a finite number >= 0")
    return cls(**values)


def fitted_gpu_from_dict(content: Mapping[str, Any], where: str) -> FittedGpu:
    """The content of one ``fitted/*.yaml``.

    Raises:
        InputError: when an entry is missing, unknown or out of range.
    """
    try:
        gpu = content["gpu"]
        gemm = {
            precision: parse(GemmCoefficients, part["coefficients"], f"{where}:gemm.{precision}")
            for precision, part in content.get("gemm", {}).items()
        }
        attention = {
            precision: {
                name: parse(
                    AttentionCoefficients,
                    part["coefficients"][name],
                    f"{where}:attention.{precision}.{name}",
                )
                for name in ("fwd", "bwd")
            }
            for precision, part in content.get("attention", {}).items()
        }
        return FittedGpu(
            name=gpu["name"],
            architecture=gpu["architecture"],
            sms=int(gpu["sms"]),
            peak_flops={name: float(rate) for name, rate in gpu["peak_flops"].items()},
            gemm=gemm,
            attention=attention,
            transferred=frozenset(
                (section, precision)
                for section in ("gemm", "attention")
                for precision, part in content.get(section, {}).items()
                if "transferred_from" in part
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(where, error, "is not a file of fitted kernel coefficients") from error


@functools.cache
def fitted_gpus() -> tuple[FittedGpu, ...]:
    """Every fitted GPU shipped with the package, by file name."""
    folder = resources.files("simulators.kernels") / "fitted"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(
        fitted_gpu_from_dict(yaml.load(file.read_text("utf-8"), loader), file.name)
        for file in files
    )


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
    best = min(candidates, key=lambda fit: (sum(_distance(gpu, fit)), fit.name))
    same_die = (
        best.architecture == gpu.architecture
        and max(_distance(gpu, best)) <= SAME_DIE_TOLERANCE
        and (section, precision_class) not in best.transferred
    )
    return best, Evidence.FITTED if same_die else Evidence.ESTIMATED


@dataclass(frozen=True)
class GemmChoice:
    """Coefficients that price one GPU's GEMMs, whose they are, and how far to trust them."""

    coefficients: GemmCoefficients
    fit: FittedGpu
    evidence: Evidence


def choose_gemm(gpu: Gpu, precision: str) -> GemmChoice:
    """The best GEMM coefficients for a GPU and precision.

    Same architecture and precision first; then, for tensor-core types, the architecture's
    16-bit set (tiles feed the tensor cores the same bytes); then another architecture.

    Raises:
        InputError: when the GPU has no such arithmetic.
    """
    gpu.peak(precision)
    wanted = PRECISION_CLASS[precision]
    family = [fit for fit in fitted_gpus() if fit.architecture == gpu.architecture]
    own = _nearest(gpu, [fit for fit in family if wanted in fit.gemm], "gemm", wanted)
    if own is not None:
        return GemmChoice(own[0].gemm[wanted], *own)
    key, candidates = wanted, list(fitted_gpus())
    if wanted != "fp32":
        key, candidates = "half", family
    borrowed = _nearest(gpu, [fit for fit in candidates if key in fit.gemm], "gemm", key)
    if borrowed is None:
        raise InputError("gpu.architecture", gpu.architecture, "has no GEMM coefficients")
    return GemmChoice(borrowed[0].gemm[key], borrowed[0], Evidence.ESTIMATED)


@dataclass(frozen=True)
class AttentionChoice:
    """Coefficients of both passes of flash attention, whose they are, and their evidence."""

    passes: Mapping[str, AttentionCoefficients]
    fit: FittedGpu
    evidence: Evidence


def choose_attention(gpu: Gpu, precision: str) -> AttentionChoice:
    """The best attention coefficients for a GPU and precision.

    Same architecture and precision first, then the architecture's 16-bit set.

    Raises:
        InputError: when the GPU has no such arithmetic.
    """
    gpu.peak(precision)
    wanted = PRECISION_CLASS[precision]
    family = [fit for fit in fitted_gpus() if fit.architecture == gpu.architecture]
    for key in (wanted, "half"):
        found = _nearest(gpu, [fit for fit in family if key in fit.attention], "attention", key)
        if found is not None:
            fit, evidence = found
            evidence = evidence if key == wanted else Evidence.ESTIMATED
            return AttentionChoice(fit.attention[key], fit, evidence)
    raise InputError("gpu.architecture", gpu.architecture, "has no attention coefficients")
