"""What Megatron-Core's fine-grained offloading takes to the host."""

from __future__ import annotations

from collections.abc import Collection

from trainscout.simulators.predictor.question.layers import MOE, Layer
from trainscout.simulators.predictor.workload.shard import Shard

_TAGS = {
    "qkv_linear": ("attention_norm_output",),
    "core_attn": ("q", "k", "v", "core_output"),
    "attn_proj": ("attention_output_input",),
    "expert_fc1": ("expert_input",),
    "moe_act": ("expert_fc1_output",),
    "fused_group_mlp": ("expert_input", "expert_fc1_output", "expert_activation"),
}


def offloaded_tags(shard: Shard, layer: Layer, modules: Collection[str]) -> frozenset[str]:
    """Tags of what a layer keeps inside of these ``modules`` (core 0.16,
    ``fine_grained_activation_offload.py``: all that a module saves, of 2 MiB or more). The
    last layer's stay there, which here are back as early: its backward pass is the next.

    Norms are modules in front of latent attention and of experts; elsewhere they are in the
    projection that follows, whose part of attention is offloaded with it.
    """
    tags = {tag for module in modules for tag in _TAGS.get(module, ())}
    if ("attn_norm" if shard.model.mla is not None else "qkv_linear") in modules:
        tags.add("attention_norm_input")
    if "mlp_norm" in modules and layer.mlp == MOE:
        tags.add("mlp_norm_input")
    return frozenset(tags)
