"""Selective recomputation: which parts of a layer keep less and run some of their forward again.

``Recipe.recompute_modules`` joins module names by ``+``: those of Megatron-Core
(``transformer_config.py: recompute_modules``), ``qkv`` and ``attn_out`` for the projections
around the attention core, which policies of other frameworks name, or ``operations`` alone:
TorchTitan's per-operation policy (``activation_checkpoint.py``), which keeps what attention, every
other matrix product and every reduce-scatter made, and where ``saves_exchanges`` what tokens'
exchanges brought and the host read, and recomputes the rest of the layer at once.
In NVFP4 no product is kept: TorchAO's layers call ``_scaled_mm_v2``, which PyTorch does not list
as expensive (2.13, ``_functorch/partitioners.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from trainscout.simulators.predictor.workload.elementwise import CLAMPED
from trainscout.simulators.predictor.workload.feed_forward.exchange import exchanged_bytes
from trainscout.simulators.predictor.workload.feed_forward.moe import UNWEIGHED
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Collective,
    Gemm,
    HostSync,
    Op,
    SendRecv,
    Streaming,
)
from trainscout.simulators.predictor.workload.linear_layers.adapters import copies_attention_output
from trainscout.simulators.predictor.workload.part import (
    ATTENTION_RESIDUAL,
    MIXER_IN,
    Part,
    until_needed,
)
from trainscout.simulators.predictor.workload.shard import Shard

OPERATIONS = "operations"
_WHOLE_MODULES = frozenset(
    ("qkv", "mla_up_proj", "core_attn", "attn_out", "mlp", "moe", "shared_experts")
)
# Products of projections kept apart, by their place: query, key, value; gate, up.
_APART = re.compile(r"(?:qkv|fc1)_(\d)_fwd")
# A norm by its input, and the modules of which one's projection makes it.
_NORM, _NORM_IN = "layernorm", "norm in "
_INNER_NORMS = {"attention_norm_input": ("qkv", MIXER_IN), "mlp_norm_input": ("mlp",)}
# A policy that runs the output projection and the norms again makes the residual stream between
# attention and MLP on the way.
_STREAM, _BETWEEN = frozenset(("attn_out", _NORM)), "mlp_norm_input"
_KEPT_OF_OPERATIONS = frozenset(("attention_norm_input", "logsumexp", "core_output"))
# What products make besides queries, values and what leaves a layer or its attention; those of
# experts, in groups, run again.
_OTHER_PRODUCTS = frozenset(
    ("k", "q_norm_input", "kv_norm_input", "fc1_output", "shared_fc1_output")
)


def recompute_parts(shard: Shard, parts: Sequence[Part], modules: frozenset[str]) -> list[Part]:
    """The parts of one layer under selective recomputation of ``modules``."""
    if OPERATIONS in modules:
        return [_by_operation(shard, part) for part in parts]
    if "moe" in modules:
        # Megatron checkpoints the layer's experts, routed and shared, as one.
        modules |= {"shared_experts"}
    if shard.fusion == "fused" and shard.attention != "unfused":
        parts = _with_inner_norms(parts)
    return [_by_module(shard, part, modules) for part in parts]


def _with_inner_norms(parts: Sequence[Part]) -> list[Part]:
    """Norms that Transformer Engine's layers make inside the projection that follows.

    They are no modules of their own, and run again with the one that they are in. In front of
    experts and of latent projections there are none.
    """
    modules = {part.module for part in parts}

    def renamed(part: Part) -> Part:
        for tensor in part.saved:
            for module in _INNER_NORMS.get(tensor.tag, ()):
                if module in modules:
                    return replace(part, module=_NORM_IN + module)
        return part

    return [renamed(part) for part in parts]


def _by_module(shard: Shard, part: Part, modules: frozenset[str]) -> Part:
    if part.module in modules & _WHOLE_MODULES:
        last = part.module in ("mlp", "moe") and shard.recompute_stops_early
        rerun = until_needed(part.forward) if last else part.forward
        return _drop(part, [tensor.tag for tensor in part.saved], rerun)
    if part.module.startswith((_NORM, _NORM_IN)) and part.module.removeprefix(_NORM_IN) in modules:
        # A norm's input is the residual stream and stays, unless it is made again too.
        outputs = [
            tensor.tag
            for tensor in part.saved
            if not tensor.tag.endswith("_input") or (modules >= _STREAM and tensor.tag == _BETWEEN)
        ]
        return _drop(part, outputs, part.forward)
    if modules >= _STREAM and part.module == ATTENTION_RESIDUAL:
        return replace(part, rerun=part.forward)
    if part.module == "moe" and "moe_act" in modules:
        again = tuple(
            op
            for op in part.forward
            if isinstance(op, Streaming | HostSync) and op.name.startswith("expert_activation")
        )
        dropped = ["expert_activation", UNWEIGHED, CLAMPED]
        return _drop(part, dropped, again) if again else part
    return part


def _by_operation(shard: Shard, part: Part) -> Part:
    """Of a gated layer's seven products the query, value, gate and down projections are kept; of
    six without a gate the query, value and first of the MLP; all but what the next layer begins
    with where ``saves_each_product``."""
    keeps_products = _keeps_products(shard)
    every = keeps_products and shard.saves_each_product
    kept_tags = {*_KEPT_OF_OPERATIONS, *(("q", "v") if keeps_products else ())}
    if not copies_attention_output(shard):
        kept_tags.add("attention_output_input")
    dropped = [tensor.tag for tensor in part.saved if tensor.tag not in kept_tags]
    saved, rerun = list(part.saved), [_again(shard, op) for op in part.forward]
    if every:
        dropped = [tag for tag in dropped if tag not in _OTHER_PRODUCTS]
        if part.module == "attn_out":
            made = shard.tokens * shard.model.hidden_size * shard.element_bytes
            saved.append(Alloc("attention_projected", made))
    elif part.module == "mlp" and keeps_products:
        first = next(tensor for tensor in part.saved if tensor.tag.endswith("fc1_output"))
        gated = shard.model.gated_mlp
        kept = first.bytes // (2 if gated else 1)
        saved.remove(first)
        saved += [Alloc("first_product", kept), Alloc(first.tag, first.bytes - kept)]
        if gated:
            hidden = shard.tokens * shard.model.hidden_size
            saved.append(Alloc("down_product", hidden * shard.element_bytes))
    scattered = sum(
        isinstance(op, Collective) and op.kind == "reduce_scatter" for op in part.forward
    )
    if scattered:
        hidden = shard.local_tokens * shard.model.hidden_size
        saved.append(Alloc("scattered", scattered * hidden * shard.element_bytes))
    exchanges = [op for op in part.forward if _saves_exchange(op, shard)]
    saved.append(Alloc("exchanged", sum(exchanged_bytes(shard, op) for op in exchanges)))
    part = replace(part, saved=tuple(tensor for tensor in saved if tensor.bytes))
    return _drop(part, dropped, tuple(op for op in rerun if op is not None))


def _keeps_products(shard: Shard) -> bool:
    return shard.linear_dtype != "fp4"


def _again(shard: Shard, op: Op) -> Op | None:
    """What of an operation runs again, or None."""
    if isinstance(op, Gemm) and not _keeps_products(shard):
        # What the last one made is the next layer's input.
        return None if op.name == "fc2_fwd" else op
    if isinstance(op, Gemm):
        if shard.saves_each_product:
            return None
        if match := _APART.match(op.name):
            return op if int(match[1]) % 2 else None
        kept = {
            "qkv_fwd": (shard.heads + shard.kv_heads) * shard.model.qk_head_dim,
            "attention_output_fwd": 0,
            "fc1_fwd": op.n // 2 if shard.model.gated_mlp else op.n,
            "fc2_fwd": op.n if shard.model.gated_mlp else 0,
        }.get(op.name, op.n // 2)
        return replace(op, n=op.n - kept) if kept < op.n else None
    if _saves_exchange(op, shard) or (shard.saves_exchanges and isinstance(op, HostSync)):
        return None
    scatters = isinstance(op, Collective) and op.kind == "reduce_scatter"
    return None if scatters or isinstance(op, Attention | SendRecv) else op


def _saves_exchange(op: Op, shard: Shard) -> TypeGuard[Collective]:
    return shard.saves_exchanges and isinstance(op, Collective) and op.kind == "all_to_all"


def _drop(part: Part, tags: Sequence[str], rerun: tuple[Op, ...]) -> Part:
    return replace(part, dropped=frozenset(tags), rerun=rerun)
