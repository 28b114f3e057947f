"""Fitted coefficients of the kernel formulas.

``fitted/*.yaml`` are written by ``trainscout kernels fit``: one file per measured
GPU, with the command, the provenance and the residuals beside the numbers.

GEMM coefficients describe short bursts at full clocks; ``sustained_fraction`` is the share of
the dense peak that the board's power still feeds when such products follow each other for
seconds, as they do in training (``gemm.py``).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.training import arithmetic_of

# bf16 and fp16 run at the same rate on every tensor core generation that has both.
# "fp8_block" are fp8 products whose scales change every 128 elements (DeepGEMM).
PRECISION_CLASS = {
    "bf16": "half",
    "fp16": "half",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "mxfp8": "fp8",
    "fp4": "fp4",
    "tf32": "tf32",
    "fp32": "fp32",
}

# Products of MXFP8 are as fast as those of one scale; attention in MXFP8 is slower (cuDNN on GB200
# and GB300, April 2026: backward passes take 1.3 times as long).
ATTENTION_CLASS = {**PRECISION_CLASS, "mxfp8": "fp8_block"}

# Kernel generations of fused attention and the section that holds their coefficients: the
# newest training kernels of the architecture (FlashAttention-2 on Ampere, FlashAttention-3 and
# cuDNN on Hopper, cuDNN on Blackwell), FlashAttention-2 on newer GPUs, and the paged prefill
# kernels of inference servers (SGLang and vLLM; TensorRT-LLM), which no training job runs but
# many tables hold.
ATTENTION_SECTIONS = {
    "flash": "attention",
    "flash2": "attention_flash2",
    "serving": "attention_serving",
    "serving_trtllm": "attention_serving_trtllm",
}


@dataclass(frozen=True)
class GemmCoefficients:
    """Parameters of the tile model (``gemm.py``) for one precision.

    ``tile_efficiency`` maps ``"128x256"`` (either orientation) to the fraction of one SM's
    peak a tile's main loop reaches. ``partial_wave`` 0..1: how much of a full wave a partly
    filled one costs beyond its own tiles. ``tile_latency_s`` and ``epilogue_s_per_element``
    are paid once per tile. ``l2_bytes_per_s_per_sm`` bounds operand traffic.
    ``split_traffic`` weighs the partial sums of a split along k. ``overlap_exponent`` is the
    norm that joins compute and DRAM time (infinite: perfect overlap). ``batched_factor`` (>= 1)
    is what many equal products in one launch lose.
    """

    tile_efficiency: Mapping[str, float]
    partial_wave: float
    tile_latency_s: float
    epilogue_s_per_element: float
    l2_bytes_per_s_per_sm: float
    dram_efficiency: float
    split_traffic: float
    overlap_exponent: float
    batched_factor: float
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
class GroupedCoefficients:
    """What grouped products cost beyond one product of the same tiles: seconds per group, and
    the factor of the weight gradient's compute time (>= 1)."""

    group_s: float
    weight_gradient_factor: float


@dataclass(frozen=True)
class StreamingCoefficients:
    """One class of memory-bound kernels: its share of the declared DRAM bandwidth, the launch
    floor in seconds, and whether the share was measured on such a GPU."""

    share: float
    launch_s: float
    measured: bool


@dataclass(frozen=True, eq=False, repr=False)
class FittedGpu:
    """One ``fitted/*.yaml``: the GPU it was measured on, whose make that is, and its coefficients.

    ``gemm`` and ``sustained_fraction`` are by precision class, ``attention`` by section (one
    a kernel generation), precision class and pass, ``streaming`` by class; ``transferred``
    holds the (section, precision class) pairs measured on another GPU than this one, or on too
    little of what training runs: they only estimate. ``residuals`` are median held-out errors
    by section, precision class and pass ("" for products).
    """

    name: str
    architecture: str
    sms: int
    peak_flops: Mapping[str, float]
    gemm: Mapping[str, GemmCoefficients]
    attention: Mapping[str, Mapping[str, Mapping[str, AttentionCoefficients]]]
    sustained_fraction: Mapping[str, float]
    cast_dram_efficiency: float | None = None
    streaming: Mapping[str, StreamingCoefficients] = field(default_factory=dict)
    grouped: GroupedCoefficients | None = None
    vendor: str = "nvidia"
    memory_bandwidth_bytes_per_s: float = math.inf
    transferred: frozenset[tuple[str, str]] = frozenset()
    residuals: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def peak_per_sm(self, precision: str) -> float:
        """Dense peak of one SM in FLOP/s; 16-bit types stand in for each other."""
        peak = self.peak_flops.get(arithmetic_of(precision))
        if peak is None and PRECISION_CLASS[precision] == "half":
            peak = max(self.peak_flops.get(name, 0.0) for name in ("bf16", "fp16"))
        return (peak or 0.0) / self.sms


def fitted_gpu_from_dict(content: Mapping[str, Any]) -> FittedGpu:
    """The content of one ``fitted/*.yaml``."""
    gpu, gemm, grouped = content["gpu"], content.get("gemm", {}), content.get("grouped")
    attention = {
        section: {
            precision: {
                name: AttentionCoefficients(**values)
                for name, values in part["coefficients"].items()
            }
            for precision, part in content[section].items()
        }
        for section in ATTENTION_SECTIONS.values()
        if section in content
    }
    return FittedGpu(
        name=gpu["name"],
        architecture=gpu["architecture"],
        sms=int(gpu["sms"]),
        peak_flops={name: float(rate) for name, rate in gpu["peak_flops"].items()},
        gemm={name: GemmCoefficients(**part["coefficients"]) for name, part in gemm.items()},
        attention=attention,
        sustained_fraction={
            name: float(part["sustained"]["fraction_of_peak"])
            for name, part in gemm.items()
            if "sustained" in part
        },
        cast_dram_efficiency=gemm.get("fp8", {}).get("cast_dram_efficiency"),
        grouped=grouped and GroupedCoefficients(**grouped["half"]["coefficients"]),
        streaming={
            kind: StreamingCoefficients(float(part["share"]), float(part["launch_s"]), True)
            for kind, part in content.get("streaming", {}).items()
        },
        vendor=gpu.get("vendor", "nvidia"),
        memory_bandwidth_bytes_per_s=float(gpu.get("memory_bandwidth_bytes_per_s", math.inf)),
        transferred=frozenset(
            (section, precision)
            for section in ("gemm", *ATTENTION_SECTIONS.values())
            for precision, part in content.get(section, {}).items()
            if "transferred_from" in part or "only_estimates" in part
        ),
        residuals=_residuals(content),
    )


def _residuals(content: Mapping[str, Any]) -> dict[tuple[str, str, str], float]:
    """Median held-out errors of one ``fitted/*.yaml``: see ``FittedGpu``."""
    found = {}
    for section in ("gemm", "attention", "grouped"):
        for precision, part in content.get(section, {}).items():
            residuals = part.get("residuals", {})
            if "held_out" in residuals:
                large = residuals.get("held_out_flops_1e10", residuals["held_out"])
                found[section, precision, ""] = large["median"]
            for pass_, figures in residuals.get("cross_validated", {}).items():
                found[section, precision, pass_] = figures["median"]
    return found


_ARCHITECTURE = re.compile(r"^  architecture: (\S+)$", re.MULTILINE)


_FOLDER = resources.files("trainscout.simulators.predictor.kernels") / "fitted"


@functools.cache
def _shipped() -> tuple[tuple[str, str], ...]:
    """Name and architecture of every file of fitted coefficients that the package ships, by name;
    all else they say is left unread."""
    files = sorted(
        (f for f in _FOLDER.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name
    )
    return tuple((f.name, _ARCHITECTURE.findall(f.read_text("utf-8"))[0]) for f in files)


@functools.cache
def _fitted(name: str) -> FittedGpu:
    return fitted_gpu_from_dict(read_yaml(_FOLDER / name))


@functools.cache
def fitted_gpus(architecture: str | None = None) -> tuple[FittedGpu, ...]:
    """Every fitted GPU shipped with the package, or those of one architecture, by file name."""
    return tuple(_fitted(name) for name, of in _shipped() if architecture in (None, of))
