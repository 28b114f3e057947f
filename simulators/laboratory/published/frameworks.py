"""Which declared framework a row's software was, by its published name and year."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from trainscout.simulators.laboratory.published.era import published_year, year_of
from trainscout.simulators.laboratory.published.outcome import CannotReplayError
from trainscout.simulators.laboratory.published.presets import is_bridge, moe_preset
from trainscout.simulators.laboratory.published.rows import Row, given
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu

# Megatron-LM's default with Transformer Engine layers (early 2024; a flag before); tuned stacks
# had it earlier.
_FLASH_IN_MEGATRON = 2024.0
_FLASH_IN_TUNED = 2023.0
_TUNED = ("mlperf", "megascale")
_FLASH_IN_NEMO = 2023.6
_SCATTER_GATHER_IN_MEGATRON = 2021.3
_FUSED_WGRAD_IN_MEGATRON = 2022.0
# Microsoft's fork took over Megatron-LM's asynchronous all-reduce with its merge of 2023;
# labels without a year mean that one.
_ASYNC_IN_MEGATRON_DEEPSPEED = 2023.0
# cuDNN's attention for Hopper in Transformer Engine's default choice; NVIDIA's MLPerf stacks had
# it from round 3.1.
_CUDNN_ATTENTION = 2024.5
_CUDNN_ATTENTION_IN_MLPERF = 2023.7
_MODULES_IN_MEGATRON = 2025.25
# Transformer Engine 2.x; Megatron-Core 0.6, whose loss works in the fp32 copy itself.
_PLACEHOLDERS_IN_MEGATRON = 2025.25
_LOSS_IN_PLACE_OF_COPY = 2024.2

# NeMo-Framework-Launcher's performance configurations of spring 2024, NeMo 1.20, and the scripts
# of NeMo 2 for performance (scripts/performance/executors.py).
_16BIT_GRADIENTS_IN_NEMO = 2024.2
_REMAINDERS_IN_NEMO = 2023.5
_EXPANDABLE_IN_NEMO = 2025.0

_FUSED_LOSS = ("megatron-bridge", "nemo 25", "nemo 26", "automodel")

_MEGATRON_LIKE = ("megatron", "nemo", "mcore", "megascale", "ptd-p", "moe parallel folding")
_EAGER = ("foundry", "composer", "fsdp1", "pytorch", "huggingface", "transformers")
_COMPILED = ("torchtitan", "fms-fsdp", "compile")
_XLA = ("maxtext", "paxml", "jax")


def framework_of(
    row: Row, gpu: Gpu, precision: str, frameworks: Mapping[str, Framework]
) -> tuple[Framework, tuple[str, ...]]:
    """The declared framework of a row, with its documented switches, and what was assumed.

    The switches: FlashAttention in Megatron-LM from 2024 and in NeMo from 2023.07; gradient
    accumulation fused into GEMMs from 2022; pipeline messages split over tensor-parallel ranks
    from 2021.04; Transformer Engine's cross entropy where NVIDIA's recipes set it (2025 and
    later) or the row says so; Megatron's fp32 main gradients only in BF16
    (``accumulate-allreduce-grads-in-fp32``); cuDNN's attention under XLA; Triton's first
    FlashAttention in llm-foundry, its default until 2024; CUDA graphs where the row says so.

    Raises:
        CannotReplayError: when a declaration this needs is not there.
    """
    label = row.framework.lower()
    notes = row.notes.lower()
    name, assumed = _declared_name(row, label, notes, gpu)
    if name not in frameworks:
        raise CannotReplayError(f"framework {name} is not declared in conf/framework")
    framework = frameworks[name]
    year, published = year_of(row, gpu), published_year(row)
    changes: dict[str, object] = {}
    megatron = name.startswith("megatron")
    if name == "megatron_2021" and year < _SCATTER_GATHER_IN_MEGATRON:
        changes["scatter_gather_p2p"] = False
    if name == "megatron_2021" and year < _FUSED_WGRAD_IN_MEGATRON:
        changes["fused_wgrad"] = False
        changes["overlap_tp_gradients"] = False
    if name == "megatron_2021" and _is_nemo_launcher(label):
        # NeMo overlapped interleaved messages (overlap_p2p_comm) before it had FlashAttention.
        changes["overlap_p2p"] = True
    if megatron and published is not None and published < _PLACEHOLDERS_IN_MEGATRON:
        changes["wgrad_placeholders"] = False
    if megatron and published is not None and published < _LOSS_IN_PLACE_OF_COPY:
        changes["cross_entropy"] = "copies"
    if "all comm/compute overlap disabled" in notes:
        changes |= {"overlap_tp_gradients": False, "overlap_p2p": False}
    merged = published is None or published >= _ASYNC_IN_MEGATRON_DEEPSPEED
    if name == "megatron_deepspeed" and merged:
        changes["overlap_tp_gradients"] = True
    fast = _CUDNN_ATTENTION_IN_MLPERF if "mlperf" in label else _CUDNN_ATTENTION
    if name == "megatron_core" and published is not None and published < fast:
        changes["attention"] = "flash2"
    if megatron and precision == "fp16":
        changes["accumulate_grads_fp32"] = False
    if "nemo" in label and published is not None:
        changes |= _nemo(label, published, gpu)
    if "fp32 gradient accumulation" in notes:
        changes["accumulate_grads_fp32"] = True
    if "fp16 gradient accumulation" in notes:
        changes["accumulate_grads_fp32"] = False
    if "fused ce loss" in notes or any(word in label for word in _FUSED_LOSS):
        changes["cross_entropy"] = "in_place"
    if name == "torchtitan":
        changes |= _torchtitan(row, notes)
    if any(word in label for word in _XLA):
        # Transformer Engine's norms and cuDNN's attention.
        changes |= {"attention": "flash", "fused_norm": True}
    if "foundry" in label:
        changes["attention"] = "flash1"
        # Composer's mixed precision DEFAULT reduces in fp32, PURE in 16 bits.
        changes["accumulate_grads_fp32"] = "mp mode default" in notes
        # Its MPT models take their loss from the flash-attn package unless told otherwise
        # (loss_fn: fused_crossentropy): it reads 16-bit logits, writes a gradient beside them.
        changes["cross_entropy"] = "compiled"
        # Its attention kernels take sequences first, as the projections have them.
        changes["packs_heads"] = False
    if "(ci)" in label and re.search(r"\bmla\b", notes):
        # Megatron-LM's tests run deterministically, where fused latent attention fails.
        changes["attention"] = "unfused"
    if is_bridge(row):
        # Its performance recipes fuse the router and reduce gradients in 16 bits.
        changes |= {"fused_router": True, "accumulate_grads_fp32": False}
        changes["expandable_segments"] = True
    if given(row.num_experts, 1) > 1:
        preset = moe_preset(row)
        changes |= {"cuda_graphs": preset.graphs, "fused_experts": preset.fused_experts}
    elif "cuda graphs" in notes:
        changes["cuda_graphs"] = True
    return dataclasses.replace(framework, **changes), assumed  # type: ignore[arg-type]


def _nemo(label: str, published: float, gpu: Gpu) -> dict[str, object]:
    """What NVIDIA's performance recipes for NeMo set: gradients kept and reduced in bf16
    (``grad_sync_dtype``, ``grad_reduce_in_fp32``; in MLPerf from its first round), bf16 weights
    counted as half of the master copy (Apex's distributed optimizer as NeMo sets it up, then the
    precision-aware one), and PyTorch's expandable segments except on B200."""
    changes: dict[str, object] = {}
    if published >= _16BIT_GRADIENTS_IN_NEMO or "mlperf" in label:
        changes["accumulate_grads_fp32"] = False
    if published >= _REMAINDERS_IN_NEMO:
        changes["master_remainders"] = True
    if published >= _EXPANDABLE_IN_NEMO and gpu.name != "b200":
        changes["expandable_segments"] = True
    return changes


def _torchtitan(row: Row, notes: str) -> dict[str, object]:
    """TorchTitan's switches: its loss is compiled from 2025 on; its blocks where asked for, which
    its first report (mid 2024) did not."""
    changes: dict[str, object] = {}
    if re.search(r"\b2024\b", notes):
        changes["cross_entropy"] = "eager"
    if "; eager" in notes or "mid-2024" in notes:
        changes |= {"fusion": "eager", "fused_norm": False}
    if given(row.pp, 1) > 1:
        # FSDP2 adds up unreduced gradients in the type it reduces them in.
        changes["accumulate_grads_fp32"] = True
    return changes


def recomputes_modules(framework: Framework, year: float) -> bool:
    """Whether software that saves memory picks modules to recompute rather than whole layers,
    as Megatron-Core does since ``recompute-modules`` (core 0.12, spring 2025)."""
    return framework.name == "megatron_core" and year >= _MODULES_IN_MEGATRON


def _declared_name(row: Row, label: str, notes: str, gpu: Gpu) -> tuple[str, tuple[str, ...]]:
    if "megatron-deepspeed" in label:
        return "megatron_deepspeed", ()
    if "deepspeed" in label:
        return "megatron_deepspeed", ("DeepSpeed's kernels as in Megatron-DeepSpeed",)
    if any(word in label for word in _XLA):
        return "torch_compile", ("XLA's fusions priced as those of torch.compile",)
    if any(word in label for word in _COMPILED):
        return "torchtitan" if "torchtitan" in label else "torch_compile", ()
    if any(word in label for word in _MEGATRON_LIKE):
        year = year_of(row, gpu)
        flash = _FLASH_IN_NEMO if _is_nemo_launcher(label) else _FLASH_IN_MEGATRON
        if any(word in label for word in _TUNED):
            flash = _FLASH_IN_TUNED
        assumed: tuple[str, ...] = ()
        if published_year(row) is None and "no flash attention" not in notes:
            assumed = (f"software of {year:.0f}, by the GPU's generation",)
        if "no flash attention" in notes or year < flash:
            return "megatron_2021", assumed
        return "megatron_core", assumed
    if "nanotron" in label:
        return "nanotron", ()
    if any(word in label for word in _EAGER):
        return "torch_eager", ()
    if "eager" in label:
        return "torch_eager", ()
    return "megatron_core", ("framework not known: kernels as in Megatron-Core",)


def _is_nemo_launcher(label: str) -> bool:
    return "nemo" in label and "mlperf" not in label
