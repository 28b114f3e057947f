"""Mixture-of-experts layers: router, token dispatch and combine, grouped expert GEMMs.

Every rank of the expert-parallel group sends as many tokens; what is priced is the rank that
receives most, ``load_imbalance`` times the mean or what hot experts make of it. Without a
capacity factor the host must also read from the device how many go where before it can launch
the exchange. With ``T`` tokens on a rank, ``K = top_k`` and an expert tensor-parallel group of
``etp``, a rank's experts process ``T * K * etp`` rows on average, shared by its ``E / ep``
experts. Tensor parallelism comes with sequence parallelism here (``question.validity``): no
two ranks hold the same token, unless they gather them first (``gathers_for_experts``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from trainscout.simulators.predictor.workload.elementwise import activation_ops, clamped_inputs
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Collective,
    Gemm,
    HostSync,
    Op,
    Streaming,
    group_launches,
)
from trainscout.simulators.predictor.workload.linear_layers.adapters import (
    expert_adapter,
    expert_product,
    folded_bytes,
    input_bytes,
    is_adapted,
)
from trainscout.simulators.predictor.workload.linear_layers.frozen_weights import unpacking
from trainscout.simulators.predictor.workload.linear_layers.linear import (
    accumulation,
    linear,
    separate_accumulation,
)
from trainscout.simulators.predictor.workload.linear_layers.quantise import cast_weights, quantise
from trainscout.simulators.predictor.workload.part import WEIGH, Part
from trainscout.simulators.predictor.workload.shard import Shard

from .exchange import COUNTS, apart, combine, dispatch, mask_bytes, token_bytes, travelling
from .expert_loads import busiest, routed_rows
from .mlp import mlp_part

UNWEIGHED = "unweighed_activation"


# Kernels of an expert in Transformers' loop. Recorded with PyTorch 2.13, one more expert is 12
# operations forward and 20 backward, products among them; what finds its tokens (``nonzero``) is
# several kernels and a wait.
_LOOP_LAUNCHES = {"fwd": 13, "bwd": 20}

# What some of PyTorch's operations take beyond what they move, as bytes at the rate of others. For
# each element of a row summed by index (``indexing_backward_kernel``): 196,608 rows of 2,048 take
# 1.85 ms on B200, 0.53 by a kernel that moves them (torchao's pull request 4623). By atomics in 16
# bits: 65,536 rows of 2,880 take 1.5 ms on B300 (Halo, grouped-gemm.md), of 4,096 3.0 ms on a GPU
# that is not named (DLBlas' 66). For each element of a token the outer product of its gradient and
# its experts' weights in fp32, whose tiles hold many more rows than experts: 6 to 9 ms for
# 65,536 tokens of 2,048 on B200 (TorchTitan's 2466); on H100 it and the casts around it are 9 % of
# a step of GPT-OSS 20B (2717), which these bytes come to within a third.
_SUMMED_BY_INDEX = 12
_SUMMED_BY_ATOMICS = 32
_OUTER_PRODUCT = 280


def moe_parts(shard: Shard) -> list[Part]:
    """Router, experts and shared experts of one layer."""
    moe, outer = shard.moe, shard
    whole = replace(shard, sp=False) if shard.gathers_for_experts and shard.tp > 1 else shard
    repeats = shard.repeats_deepep and moe.dispatcher == "deepep" and shard.ep > 1
    if shard.etp > 1 or repeats:
        shard = whole
    parts = [_router(whole), _counts(shard), _experts(shard)]
    if moe.latent_size is not None:
        outside, inside = shard.model.hidden_size, moe.latent_size
        parts.insert(2, _projection(shard, "latent_in", outside, inside))
        parts.append(_projection(shard, "latent_out", inside, outside))
    if moe.shared_ffn_hidden_size:
        parts.append(mlp_part(outer, moe.shared_ffn_hidden_size, "shared_"))
    return parts if whole is outer else [_among_tp(whole, True), *parts, _among_tp(whole, False)]


def _among_tp(shard: Shard, ahead: bool) -> Part:
    """All tokens gathered ``ahead`` of the experts, or what these made of them summed and
    scattered; backward the other way round."""
    name, size = "experts_in" if ahead else "experts_out", token_bytes(shard)
    kinds = ("all_gather", "reduce_scatter") if ahead else ("reduce_scatter", "all_gather")
    forward, backward = (Collective(name, kind, size, "tp", shard.dtype) for kind in kinds)
    return Part((forward,), (backward,), module="moe")


def _projection(shard: Shard, name: str, inputs: int, outputs: int) -> Part:
    """Between a token's width and the one that it travels in, whole on every rank."""
    tokens, size = shard.local_tokens, shard.element_bytes
    forward, backward = linear(shard, name, tokens, inputs, outputs)
    # The router, too, reads what goes in; what comes out of experts nobody else keeps.
    kept = int(tokens * inputs * input_bytes(shard, name))
    return Part(
        tuple(forward),
        tuple(backward),
        (Alloc(f"{name}_input", kept),),
        forward_peak_bytes=tokens * outputs * size,
        backward_peak_bytes=tokens * (inputs + outputs) * size,
        module="moe",
    )


def _router(shard: Shard) -> Part:
    """Logits GEMM, softmax, top-k and the auxiliary loss's statistics, in fp32."""
    moe, tokens = shard.moe, shard.local_tokens
    hidden, experts = shard.model.hidden_size, moe.num_experts
    score_bytes = tokens * experts * 4
    dtype = shard.dtype
    # Softmax, top-k, routing map, auxiliary loss: each kernel passes over the scores (26 and 14 of
    # them as recorded from Megatron-Core 0.16).
    ahead, back = (3, 3) if shard.fused_router else (26, 14)
    wgrad: list[Op] = []
    if shard.trains:
        # Its gradient is added by a kernel of its own in Megatron-Core too.
        wgrad.append(Gemm("router_wgrad", experts, hidden, tokens, dtype, layout="NT"))
        wgrad += accumulation(shard, "router", experts * hidden)
    return Part(
        (
            Gemm("router_fwd", tokens, experts, hidden, dtype),
            _scores("router_scores", "softmax_fwd", ahead, score_bytes),
        ),
        (
            _scores("router_scores_bwd", "softmax_bwd", back, score_bytes),
            Gemm("router_dgrad", tokens, hidden, experts, dtype, layout="NN"),
            *wgrad,
        ),
        (Alloc("router_scores", 2 * score_bytes),),
        forward_peak_bytes=2 * score_bytes,
        backward_peak_bytes=2 * score_bytes,
        module="moe",
    )


def _scores(name: str, kind: str, kernels: int, score_bytes: int) -> Streaming:
    """Kernels over the scores; two in three read or write them in full."""
    return Streaming(name, kind, kernels * score_bytes * 2 // 3, launches=kernels)


def _counts(shard: Shard) -> Part:
    """How many tokens go to each expert: shared among ranks and read by the host.

    Experts that are padded to their capacity need no count, and one kernel for all of them takes
    it on the device (Megatron-Bridge captures whole iterations with such). So do PyTorch's grouped
    products, where no other rank has experts (TorchTitan, Transformers 5: ``offs``).
    """
    moe = shard.moe
    if moe.padded:
        return Part((), ())
    ranks, table = shard.ep * shard.etp, 8 * moe.num_experts
    ops: list[Op] = [Streaming("expert_counts", "reduce", table, launches=6)]
    if ranks > 1:
        ops.append(Collective(COUNTS, "all_gather", table * ranks, "etp_ep", "fp32"))
    by_torch = shard.gathers_for_experts or shard.written_dispatch in ("half", "fp32")
    if not shard.fused_experts and (ranks > 1 or not by_torch):
        ops.append(HostSync("expert_counts"))
    return Part(tuple(ops), (), module="moe")


def _experts(shard: Shard) -> Part:
    shard = shard.of_module("experts")
    moe, model, size = shard.moe, shard.model, shard.element_bytes
    rows_out = routed_rows(shard)
    rows_in = busiest(shard, rows_out * apart(shard))
    groups = moe.num_experts // shard.ep
    per_expert = math.ceil(rows_in / groups)
    # A loop runs one expert after another.
    turns = groups if shard.loops_experts else 1
    groups, rows = groups // turns, rows_in // turns
    hidden, width = travelling(shard), moe.ffn_hidden_size // shard.etp
    fc1_width = width * (2 if model.gated_mlp else 1)
    sent, received = rows_out * hidden * size, rows_in * hidden * size
    inputs = int(rows_in * hidden * input_bytes(shard, "expert_fc1"))
    activations = int(rows_in * width * input_bytes(shard, "expert_fc2"))

    act_forward, act_backward = activation_ops(shard, "expert_activation", rows * width)
    cast = partial(quantise, shard, groups=groups)
    between_forward = [*act_forward, *cast("expert_fc2_fwd", rows * width)]
    between_backward = [*act_backward, *cast("expert_fc1_bwd", rows * fc1_width)]
    add_biases, bias_gradients = _expert_biases(shard, groups, rows, fc1_width)
    if shard.fused_experts:
        # What lies between the two layers happens in the products' epilogues.
        between_forward, between_backward = [], []
    weighed, unweighed = _written(shard, sent // size)
    ahead: list[Op] = [
        *_loop(shard, "fwd", rows),
        *cast("expert_fc1_fwd", rows * hidden),
        *cast_weights(shard, "expert", groups * (fc1_width + width) * hidden),
        *_grouped("expert_fc1", "fwd", groups, per_expert, fc1_width, hidden, shard),
        *between_forward,
        *_grouped("expert_fc2", "fwd", groups, per_expert, hidden, width, shard),
        *add_biases,
    ]
    back: list[Op] = [
        *_loop(shard, "bwd", rows),
        *bias_gradients,
        *cast("expert_fc2_bwd", rows * hidden),
        *_grouped("expert_fc2", "bwd", groups, per_expert, hidden, width, shard),
        *between_backward,
        *_grouped("expert_fc1", "bwd", groups, per_expert, fc1_width, hidden, shard),
    ]
    stacks = folded_bytes(shard, ahead * turns)
    # A stack's gradient is there when the stacks behind it are gone.
    gradient = max((each - sum(stacks[at + 1 :]) for at, each in enumerate(stacks)), default=0)
    cast_bytes = rows_in * fc1_width * size if shard.stores_fp8_activations else 0
    held = received + sent + cast_bytes + gradient
    weights = groups * (fc1_width + width) * hidden * size * shard.keeps_gathered_experts
    combined = combine(shard, sent, received)
    forward = [*dispatch(shard, sent, received), *ahead * turns, *combined, *weighed]
    # The gradient of a combine is a dispatch, and the other way round.
    combined = combine(shard, sent, received, suffix="_bwd")
    dispatched = dispatch(shard, sent, received, suffix="_bwd")
    backward = [*unweighed, *dispatched, *back * turns, *combined]
    return Part(
        tuple(forward),
        tuple(backward),
        (
            Alloc("expert_input", inputs),
            Alloc("expert_fc1_output", cast_bytes // size or rows_in * fc1_width * size),
            Alloc("expert_activation", activations),
            *(clamped_inputs(shard, rows_in * fc1_width) if between_forward else []),
            *([Alloc("expert_folded", sum(stacks))] if stacks else []),
            *([Alloc("gathered_experts", weights)] if weights else []),
            *([Alloc("masks", masks)] if (masks := mask_bytes(shard)) else []),
            *_weighed(shard, sent, rows_in * width * size),
        ),
        forward_peak_bytes=max(received + sent, cast_bytes),
        backward_peak_bytes=held + rows_in * (fc1_width + width) * size,
        module="moe",
    )


def _loop(shard: Shard, pass_: str, rows: int) -> list[Op]:
    """What a Python loop launches for an expert: where its tokens are, for which the host waits,
    taken, multiplied, weighed and added to the rest (``Qwen3MoeSparseMoeBlock``)."""
    if not shard.loops_experts:
        return []
    waits: list[Op] = [HostSync("expert_rows")] if pass_ == "fwd" else []
    launches = _LOOP_LAUNCHES[pass_]
    return [*waits, Streaming(f"expert_loop_{pass_}", "elementwise", 8 * rows, launches)]


def _written(shard: Shard, elements: int) -> tuple[list[Op], list[Op]]:
    """What PyTorch's operations move besides permuting ``elements`` of token copies, and what they
    take beside, as bytes.

    In 16 bits a product with the weights and a sum, ``3s``; then a copy of the sum's gradient for
    each of its terms, zeros to put gradients into, adding to what stands there (twice), both
    factors' gradients and their sum, ``10s`` (recorded from Transformers 5.24; TorchTitan's with
    DeepEP move as much). In fp32 a row appended for padding, zeros, a cast and a batched product,
    ``4s + 8``; then both gradients of that, one an outer product, a cast, those of padding and its
    removal, and the sum of what two first layers pass back, ``10s + 8`` (TorchTitan of December
    2025, models/moe). Rows are taken by index twice, whose gradients are summed by index; around
    DeepEP they are summed by atomics, forward and backward. Megatron-Core without fused kernels
    takes zeros to copy rows into, a product and a sum, ``4s``; then both factors' gradients,
    ``4s``, and sums by atomics what picked rows pass back (core 0.6, moe_utils.py).
    """
    if not shard.written_dispatch:
        return [], []
    s, outer = shard.element_bytes, 0
    ahead, back, launches = 3 * s, 10 * s + 2 * _SUMMED_BY_INDEX, (2, 8)
    if _weighs_wide(shard):
        ahead, back, launches = 4 * s + 8, back + 8, (5, 9)
        outer = _OUTER_PRODUCT * elements // shard.moe.top_k
    elif shard.written_dispatch == "fp32":
        ahead, back = ahead + _SUMMED_BY_ATOMICS, 10 * s + _SUMMED_BY_ATOMICS
    elif shard.written_dispatch == "atomic":
        ahead, back, launches = 4 * s, 4 * s + _SUMMED_BY_ATOMICS, (3, 4)
    return (
        [Streaming(WEIGH, "elementwise", ahead * elements, launches[0])],
        [Streaming(f"{WEIGH}_bwd", "elementwise", back * elements + outer, launches[1])],
    )


def _weighs_wide(shard: Shard) -> bool:
    """Whether what experts made is weighed in fp32."""
    exchanged_once = shard.moe.dispatcher == "deepep" and shard.ep > 1
    return shard.written_dispatch == "fp32" and not exchanged_once


def _weighed(shard: Shard, sent: int, activations: int) -> list[Alloc]:
    """What the router's weights multiply: an expert's output or, between its layers, what the
    activation makes. Megatron-Core fuses that with gated activations (``TEGroupedMLP``) and with
    the squared ReLU of hybrids, whose recipes ask for it (``use_fused_weighted_squared_relu``)."""
    if shard.written_dispatch or shard.fusion != "fused":
        return [_output(shard, sent)]
    if shard.model.gated_mlp or shard.fused_experts or not shard.model.is_plain:
        return []
    return [Alloc(UNWEIGHED, activations)]


def _output(shard: Shard, sent: int) -> Alloc:
    """What the router's weights multiply, kept for their gradient."""
    return Alloc("expert_output", sent * 4 // shard.element_bytes if _weighs_wide(shard) else sent)


def _expert_biases(
    shard: Shard, groups: int, rows: int, fc1_width: int
) -> tuple[list[Op], list[Op]]:
    """Adding the second layers' biases, weighted by the router, and the gradients of all biases.

    Megatron-Core writes bias times weight in fp32, adds it, puts the experts' rows together and
    casts back: 28 bytes an element, and as many again for both factors' gradients, by two
    operations an expert forward and six backward as recorded from its ``_apply_bias``. The first
    layers' biases are added by their products.
    """
    if not shard.model.linear_bias:
        return [], []
    outputs, size = rows * travelling(shard), shard.element_bytes
    biases = groups * (fc1_width + travelling(shard))
    groups = 0 if shard.written_dispatch else groups
    gradients: list[Op] = []
    if shard.trains:
        gradients = [Streaming("expert_fc1_bias_grad", "reduce", rows * fc1_width * size)]
        gradients += accumulation(shard, "expert_bias", biases, group_launches(groups, 2))
    written = 4 + (size + 4 + 4) + (4 + 4) + (4 + size)
    ahead, back = 2 + group_launches(groups, 2), 3 + group_launches(groups, 6)
    return (
        [Streaming("expert_bias", "elementwise", outputs * written, ahead)],
        [
            Streaming("expert_bias_bwd", "elementwise", outputs * (size + 28), back),
            *gradients,
        ],
    )


def _grouped(
    name: str, pass_: str, groups: int, rows: int, outputs: int, inputs: int, shard: Shard
) -> list[Op]:
    """One linear layer of all experts of a rank."""

    def product(what: str, n: int, k: int, layout: str) -> Op:
        sizes = groups, rows, n, k
        return expert_product(shard, f"{name}_{what}", sizes, shard.linear_dtype, layout)

    beside: tuple[list[Op], list[Op]] = [], []
    if is_adapted(shard, name):
        beside = expert_adapter(shard, name, groups, rows, outputs, inputs)
    unpacked = unpacking(shard, name, rows, inputs, outputs)
    if pass_ == "fwd":
        made = [product("fwd", outputs, inputs, "TN")]
        inner = [*beside[0], *made] if shard.stacks_experts else [*made, *beside[0]]
        return [*unpacked[0] * groups, *inner]
    dgrad = product("dgrad", inputs, outputs, "NN")
    if not shard.trains:
        return [*unpacked[1] * groups, dgrad, *beside[1]]
    wgrad = product("wgrad", outputs, inputs, "NT")
    return [dgrad, wgrad, *separate_accumulation(shard, name, groups * outputs * inputs)]
