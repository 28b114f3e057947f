"""Gated delta nets: projections, convolutions and the delta rule as products of chunks.

Its kernels are priced as the batched products and the bytes of the chunked algorithm (arXiv
2412.06464, section 3.3; ``fla.ops.gated_delta_rule``), at shares of the peak and of the bandwidth
by published timings of 32 and more heads; fewer leave SMs idle while chunks follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainscout.simulators.predictor.question.layers import DeltaNet
from trainscout.simulators.predictor.workload.elementwise import norm_ops
from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.adapters import input_bytes
from trainscout.simulators.predictor.workload.linear_layers.linear import linear
from trainscout.simulators.predictor.workload.part import MIXER_IN, Part
from trainscout.simulators.predictor.workload.shard import Shard

from .state_space import again, by_heads, chunks, convolution, joined, product

# What the rule comes to in PyTorch's operations beside its products, forward and backward
# (``delta_rule``): kernels, more for each row of a chunk and for each chunk of a sequence; bytes
# of a token and value head for each of k, v, the tokens of a chunk, their square, and k v over
# them. Then bytes that are kept, and which products are made of all chunks at once; those of the
# state are made one chunk after another. Backward each chunk's slices have gradients as long as
# the sequence, which are added up: so many bytes more a chunk, of k, v and its tokens. Recorded
# with PyTorch 2.13 from Transformers 5.13 and 5.24, heads of 64 to 256, chunks of 16 to 64
# tokens: bytes to 0.5 %, kept ones to 2.
_WRITTEN = {
    "rows": (
        ((41, 6, 12), (99, 80, 88, 6.7, 20)),
        ((22, 14, 46), (240, 60, 171, 49.8, 45)),
        (27, 12, 23, 1.35, 4),
        ("keys", "w", "u"),
    ),
    "solved": (
        ((44, 0, 5), (124, 84, 54, 0, 20)),
        ((74, 0, 23), (309, 76, 151, 0, 45)),
        (32, 12, 22, 0, 4),
        ("keys", "scores"),
    ),
}
_FOR_EACH_CHUNK = (47.4, 25.4, 16.5)


def delta_parts(shard: Shard, delta: DeltaNet) -> list[Part]:
    """The parts of one mixer, from the projections in to the projection out, heads sharded over
    the tensor-parallel group. What is projected of a shard of the sequence is exchanged for heads
    in front of the convolution and back behind the gate (Megatron-Core's pull request 2642)."""
    hidden, size = shard.model.hidden_size, shard.element_bytes
    values = delta.v_heads * delta.v_dim // shard.tp
    keys = delta.k_heads * delta.k_dim // shard.tp
    width = delta.projected // shard.tp
    low, low_back = _low_rank(shard, delta, keys, values)
    into, into_back = linear(shard, "delta_in", shard.tokens, hidden, width, parallel="column")
    out, out_back = linear(shard, "delta_out", shard.tokens, values, hidden, parallel="row")
    full = shard.tokens * hidden * size
    made, gate = shard.tokens * width * size, shard.tokens * values * size
    decay = shard.tokens * delta.decays // shard.tp * 4
    gathered = full if shard.sp else 0
    norm, norm_back = norm_ops(shard, "delta_norm", shard.tokens * values)
    kept = input_bytes(shard, "delta_out")
    turned = _turned(shard, delta)
    decay_back = Streaming("delta_decay_bwd", "elementwise", 3 * decay)
    heads = delta.v_heads // shard.tp
    apart = (keys, keys, values, values, heads, heads)
    return [
        Part(
            (
                *into,
                *low,
                *by_heads(shard, "delta_exchange", *apart),
                *joined(shard, made, 1),
                Streaming("delta_decay_fwd", "elementwise", 2 * decay),
                *turned,
            ),
            (
                *turned,
                decay_back,
                *joined(shard, made, 2),
                *by_heads(shard, "delta_grad_exchange", *apart),
                *low_back,
                *into_back,
            ),
            (Alloc("delta_gate", gate), Alloc("delta_decay", 2 * decay)),
            forward_peak_bytes=gathered + made,
            backward_peak_bytes=made + full + gathered,
            module=MIXER_IN,
        ),
        convolution(shard, "delta", delta.convolved // shard.tp),
        _rule(shard, delta) if shard.delta_rule == "fused" else _written_rule(shard, delta),
        Part(
            (
                *norm,
                Streaming("delta_gate_fwd", "elementwise", 3 * gate),
                *by_heads(shard, "delta_output_exchange", values),
                *out,
            ),
            (
                *out_back,
                *by_heads(shard, "delta_output_grad_exchange", values),
                Streaming("delta_gate_bwd", "elementwise", 5 * gate),
                *norm_back,
            ),
            (
                Alloc("delta_output", gate),
                Alloc("delta_out_input", int(shard.tokens * values * kept)),
            ),
            forward_peak_bytes=full + gate,
            backward_peak_bytes=2 * full,
        ),
    ]


def _turned(shard: Shard, delta: DeltaNet) -> list[Op]:
    """Megatron-Core's ``gated_delta_net.py`` turns channels first for the convolution and back,
    copies the gate and repeats keys for each value head, as Transformers' modules do
    without the package that convolves in place (causal-conv1d)."""
    if shard.fusion == "compiled":
        return []
    token = shard.tokens // shard.tp * shard.element_bytes
    repeats = delta.v_heads > delta.k_heads
    keys = 2 * (delta.v_heads + delta.k_heads) * delta.k_dim * repeats
    return [
        Streaming("delta_turn", "permute", 4 * token * delta.convolved, launches=4),
        Streaming("delta_copy", "memcpy", token * (2 * delta.v_heads * delta.v_dim + keys), 3),
    ]


def _low_rank(shard: Shard, delta: DeltaNet, keys: int, values: int) -> tuple[list[Op], list[Op]]:
    """The decay of every channel and the output gate through one head's width (Kimi-Linear)."""
    forward: list[Op] = []
    backward: list[Op] = []
    for name, width in (("decay", keys), ("gate", values)) if delta.is_low_rank else ():
        hidden, rank = shard.model.hidden_size, delta.v_dim
        down, down_back = linear(shard, f"delta_{name}_down", shard.tokens, hidden, rank)
        up, up_back = linear(shard, f"delta_{name}_up", shard.tokens, rank, width)
        forward += [*down, *up]
        backward = [*up_back, *down_back, *backward]
    return forward, backward


def _rule(shard: Shard, delta: DeltaNet) -> Part:
    """Of each chunk the products of its keys, their triangle inverted (a third of as many
    operations as a product), keys and values transformed by it (the WY form), what the state holds
    for them, scores, outputs and the state's update. Backward makes transformed keys, values and
    states again before the gradients of every product."""
    number, length = chunks(shard, delta.chunk)
    cuts = shard.tp * shard.cp
    heads, size = delta.v_heads // cuts, shard.element_bytes
    batch, k, v = number * heads, delta.k_dim, delta.v_dim
    made = {
        name: product(shard, f"delta_{name}", "delta", batch, *sizes)
        for name, sizes in _products(delta, length).items()
    }
    forward = [op for each, _ in made.values() for op in each]
    remade = again(op for name in ("w", "u", "held", "update") for op in made[name][0])
    backward = [op for _, each in reversed(made.values()) for op in each]
    tokens = number * length
    # Queries and keys are normalised; each kernel reads or writes keys, values and outputs once.
    moved = tokens * heads * (4 * k + 4 * v) * size
    passed = batch * k * v * size
    kept = tokens * (heads * v + 2 * delta.k_heads // cuts * k) * size
    triangle = batch * length * length * size
    return Part(
        (*forward, Streaming("delta_rule_fwd", "delta_fwd", moved + 2 * passed, launches=6)),
        (
            *remade,
            *backward,
            Streaming("delta_rule_bwd", "delta_bwd", 2 * moved + 4 * passed, launches=8),
        ),
        # Queries, keys and values after their convolution, and each chunk's inverse.
        (Alloc("delta_qkv", kept), Alloc("delta_inverse", triangle)),
        forward_peak_bytes=passed + moved // 2,
        backward_peak_bytes=2 * passed + moved,
    )


def _products(delta: DeltaNet, length: int) -> dict[str, tuple[int, int, int]]:
    """Rows, columns and depth of what is multiplied in a chunk."""
    k, v = delta.k_dim, delta.v_dim
    return {
        "keys": (length, length, k),
        "inverse": (length, length, -(-length // 3)),
        "w": (length, k, length),
        "u": (length, v, length),
        "held": (length, v, k),
        "update": (k, v, length),
        "scores": (length, length, k),
        "inside": (length, v, length),
        "across": (length, v, k),
    }


def _written_rule(shard: Shard, delta: DeltaNet) -> Part:
    """The same where PyTorch's operations are all there is (``_WRITTEN``), in fp32."""
    number, length = chunks(shard, delta.chunk)
    k, v, loops = delta.k_dim, delta.v_dim, number // shard.batch
    heads = delta.v_heads // (shard.tp * shard.cp)
    elements = number * length * heads
    forward, backward, kept, at_once = _WRITTEN[shard.delta_rule]
    ahead: list[Op] = []
    back: list[Op] = []
    for name, sizes in _products(delta, length).items():
        if name in at_once or name not in ("keys", "inverse", "w", "u"):
            times = 1 if name in at_once else loops
            passes = product(shard, f"delta_{name}", "delta", number * heads // times, *sizes)
            for ops, own in zip((ahead, back), passes, strict=True):
                gemms = (op for op in own if isinstance(op, Gemm))
                ops += [replace(op, dtype="fp32", within="") for op in gemms] * times
    counts, of = (1, length, loops), (k, v, length, length**2, k * v / length)
    # Python issues each of the forward pass.
    issued = _total(forward[0], counts)
    share = elements * _total(forward[1], of) // issued
    moved = elements * (_total(backward[1], of) + loops * _total(_FOR_EACH_CHUNK, of))
    return Part(
        (*ahead, *[Streaming("delta_rule_fwd", "elementwise", share)] * issued),
        (*back, Streaming("delta_rule_bwd", "elementwise", moved, _total(backward[0], counts))),
        (Alloc("delta_written", elements * _total(kept, of)),),
        forward_peak_bytes=4 * elements * (k + v),
        backward_peak_bytes=8 * elements * (k + v),
    )


def _total(weights: Sequence[float], of: Sequence[float]) -> int:
    return round(sum(weight * each for weight, each in zip(weights, of, strict=False)))
