"""Knobs of activations that are computed again in the backward pass, or copied back, instead of
kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainscout.simulators.predictor.question.knob import (
    LAYER_BLOCKS,
    LAYOUT,
    PASSES,
    Canonical,
    knob,
)

if TYPE_CHECKING:
    from trainscout.simulators.predictor.question.job import Job

RECOMPUTE_MODES = ("none", "selective", "full")
# Megatron-Core's names, then what other frameworks' policies need (workload/model/recompute.py).
RECOMPUTE_MODULES = (
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "moe_act",
    "shared_experts",
    "qkv",
    "attn_out",
    "operations",
)
DEFAULT_RECOMPUTE_MODULES = "core_attn"
# Megatron-Core's names of what it offloads (workload/model/offload.py).
OFFLOAD_MODULES = (
    *("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"),
    "fused_group_mlp",
)
_SPLIT = (
    *("framework", "pp", "vpp", "first_stage_layers", "last_stage_layers"),
    *("embedding_as_layer", "loss_as_layer", "pipeline_layout"),
)


def _modules_in_order(job: Job) -> str | None:
    ordered = "+".join(sorted(set(str(job.recipe.recompute_modules).split("+"))))
    return None if ordered == DEFAULT_RECOMPUTE_MODULES else ordered


def _offloaded_in_order(job: Job) -> str:
    return "+".join(sorted(set(str(job.recipe.offload_modules).split("+"))))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Recomputation:
    """What is computed again in the backward pass, or copied back, instead of kept."""

    recompute: str = knob(
        "none",
        "recompute={}",
        (LAYER_BLOCKS,),
        choices=RECOMPUTE_MODES,
        topic="recompute",
        one_thing=True,
    )
    """``none`` keeps activations, ``selective`` repeats parts of layers in the backward pass,
    ``full`` whole layers."""
    recompute_layers: int | None = knob(
        None,
        "({})",
        (PASSES,),
        left_out="all",
        topic="recompute",
        one_thing=True,
        detail_of=("recompute",),
        canonical=Canonical(
            "it is every layer when left out",
            _SPLIT,
            lambda job: job.recipe.recompute_layers == job.largest_chunk,
        ),
        search=(None, 1),
    )
    """How many layers of each pipeline chunk ``full`` repeats (Megatron's ``block`` method); None
    means every layer."""
    recompute_taper: int = knob(
        0,
        "taper{}",
        (LAYOUT,),
        least=0,
        topic="recompute",
        one_thing=True,
        detail_of=("pp", "recompute"),
        search=(0, 1, 2),
    )
    """Each stage recomputes so many layers per chunk fewer than the one before, as it has fewer
    micro-batches in flight."""
    recompute_modules: str | None = knob(
        None,
        "({})",
        (LAYER_BLOCKS,),
        own_words="modules joined by +, such as core_attn+mlp",
        left_out=DEFAULT_RECOMPUTE_MODULES,
        topic="recompute",
        one_thing=True,
        detail_of=("recompute",),
        canonical=Canonical(
            "they are a set, and the attention core when left out",
            (),
            lambda job: job.recipe.recompute_modules is not None,
            _modules_in_order,
        ),
        search=(None, "mlp", "layernorm", "core_attn+mlp"),
    )
    """What ``selective`` recomputes, joined by ``+``; None means the attention core."""
    offloaded_layers: int = knob(
        0,
        "offload{}",
        (LAYER_BLOCKS,),
        least=0,
        detail_of=("pp", "recompute"),
        search=(0, 4, 8, 16, 32, 64),
        megatron_lm="--cpu-offloading-num-layers",
        megatron_bridge="model.cpu_offloading_num_layers",
    )
    """Activations of so many first layers wait in the host's memory between the passes, copied
    beside the kernels (Transformer Engine's ``cpu_offload``): without a pipeline only. Under
    ``full`` recomputation inputs of layers do, where the framework can (``offloads_inputs``)."""
    offload_modules: str | None = knob(
        None,
        "offload={}",
        (LAYER_BLOCKS,),
        own_words="modules joined by +, such as core_attn+expert_fc1",
        detail_of=("recompute",),
        canonical=Canonical(
            "they are a set",
            (),
            lambda job: job.recipe.offload_modules is not None,
            _offloaded_in_order,
        ),
        search=(None, "expert_fc1", "expert_fc1+moe_act"),
    )
    """Inputs of what modules of every layer wait in the host's memory between the passes, joined
    by ``+``: Megatron-Core's ``--offload-modules``, with or without a pipeline."""
