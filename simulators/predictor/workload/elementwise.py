"""What memory-bound pieces read and write, by how far the framework fuses them.

Sizes are bytes per element of the piece's main tensor; ``s`` is the width of activations
(2 in 16 bits). Hand-fused and compiled kernels read each input once and write each output once.
Written as separate PyTorch operations, every intermediate goes through memory, and what is done
in fp32 at four bytes. Those whose tensors do not lie alike, as a weight and what it multiplies, go
element by element, and take as long as 10 bytes each: 0.28 to 0.36 x 10^12 elements a second,
measured on one H100, where vectorised kernels move 3.0 TB/s (``unvectorised_bytes`` of traces).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .ir import Alloc, HostSync, Op, Streaming
from .shard import Shard

Passes = tuple[list[Op], list[Op]]
# The tag of what was clamped, which is kept beside what was not.
CLAMPED = "clamped"


def norm_ops(shard: Shard, name: str, elements: int, norms: int = 1) -> Passes:
    """So many ``norms`` of ``elements`` in all: one kernel forward, two backward, but for an
    RMSNorm neither compiled nor hand-made.

    Those of PyTorch (it has one for LayerNorm) and of its compiler reach less of the bandwidth
    than hand-made ones. RMSNorm as models write it is a cast to fp32, a square, its mean, a
    product with the root's inverse, a cast back and a product with the weight:
    ``(s+4) + 8 + 4 + 10 + (4+s) + 10``, of what is fp32 without the casts, as the root and the
    weight are broadcast; autograd then undoes each, ``4s + 86`` and the casts (as recorded).
    ``s`` is that of the residual stream here.
    """
    s = shard.stream_bytes
    made = s if shard.casts_apart else shard.element_bytes
    if writes_norm(shard):
        casts = 2 * (s < 4)
        forward, backward = (of + casts * (s + 4) for of in (32, 4 * s + 86))
        return (
            [Streaming(f"{name}_fwd", "elementwise", forward * elements, (6 + casts) * norms)],
            [Streaming(f"{name}_bwd", "elementwise", backward * elements, 14 * norms)],
        )
    by = "" if shard.fused_norm else "_plain"
    return (
        [Streaming(f"{name}_fwd", f"norm_fwd{by}", (s + made) * elements, norms)],
        [Streaming(f"{name}_bwd", f"norm_bwd{by}", (2 * s + made) * elements, 2 * norms)],
    )


def writes_norm(shard: Shard) -> bool:
    """Whether a norm is an RMSNorm in six operations or more: that of models, and PyTorch's own
    until its 2.9 (``_fused_rms_norm``)."""
    written = shard.fusion != "compiled" and shard.model.normalization == "rmsnorm"
    return written and not (shard.fused_norm or shard.norm_kernel)


def kept_of_norm(shard: Shard, name: str, elements: int) -> list[Alloc]:
    """What an RMSNorm in operations keeps beyond its input's own bytes, ``s``: of the input it
    keeps an fp32 copy alone (or itself, in fp32), and for the gradient of a weight that is trained
    what it multiplied by it, ``4 + s`` (``LlamaRMSNorm``)."""
    kept = 4 if shard.trains else 4 - shard.stream_bytes
    return [Alloc(f"{name}_written", kept * elements)] if writes_norm(shard) and kept else []


def rope_ops(shard: Shard, elements: int) -> Passes:
    """Rotary positions of queries and keys, ``elements`` in all.

    Fused: one kernel each. As a complex product, between a cast to fp32 and one back, ``2s + 16``,
    a kernel of its own when compiled, too (TorchInductor generates none). Eagerly in 16 bits: two
    products, a rotated copy and a sum, as much, but ``17s`` backward, where halves are put into
    zeros; of heads ahead of tokens most go element by element, and heads are put in order, 39 and
    53 (as recorded of Transformers). Hand-made kernels have no place for a temperature
    (Megatron-Core's ``mscale``). Under autocast sines and cosines are fp32, and so are products
    and sum, which are cast for attention, 47; backward, two of three products' gradients are cast,
    71; what casts itself moves what it does without. ``packed``: queries, keys and values are
    copied out of their product, the latter two put together, and in order by token; queries are
    turned into a tensor of their own, keys in place. Back, queries' gradients are cloned, and
    theirs and all others put together again (nanotron's ``CausalSelfAttention``,
    ``flash_attn.layers.rotary``). ``pairs``: casts, products of every other element with sines and
    cosines, sums, and a stack; back each is put into zeros (torchtune's
    ``RotaryPositionalEmbeddings``, as recorded). Where a ``rotary_fraction`` of each head is
    turned, operations of PyTorch's cut that out and put it beside the rest, ``2s``; back, the
    gradient of either is put into zeros, and both are added, ``7s``.
    """
    s, turned = shard.element_bytes, shard.model.rotary_fraction
    joined, parted = (2 * s * elements, 7 * s * elements) if turned < 1 else (0, 0)
    if shard.casts_apart and shard.rope == "halves":
        ahead, back = (int(turned * of * elements) for of in (47, 71))
        return (
            [Streaming("rope_fwd", "elementwise", ahead + joined, 12)],
            [Streaming("rope_bwd", "elementwise", back + parted, 22)],
        )
    by_hand = shard.fusion == "fused" and shard.model.scaled_rope
    apart = shard.fusion == "eager" or shard.rope == "complex" or by_hand or not shard.fused_rope
    ahead = back = 2 * s * elements
    if shard.rope == "packed":
        keys = elements * shard.kv_heads // (shard.heads + shard.kv_heads)
        ahead, back = s * (4 * elements + 10 * keys), s * (6 * elements + 4 * keys)
    elif apart:
        by_halves = (39, 53) if shard.batch_first else (2 * s + 16, 17 * s)
        ways = {"complex": (2 * s + 16,) * 2, "pairs": (2 * s + 52, 2 * s + 105)}
        ahead, back = (int(turned * of * elements) for of in ways.get(shard.rope, by_halves))
        ahead, back = ahead + joined, back + parted
    launches = 6 if apart else 2
    looped = rope_by_document(shard) if apart else (0, 0)
    # Every sequence's gradient is cut out of a copy of all.
    back += 2 * s * elements * shard.documents if looped[1] else 0
    return (
        [
            *waits_for_lengths(looped),
            Streaming("rope_fwd", "elementwise", ahead, launches + looped[0]),
        ],
        [Streaming("rope_bwd", "elementwise", back, launches + looped[1])],
    )


def launches_by_document(shard: Shard, each: int) -> int:
    """Launches, at the framework's pace, of ``each`` kernels of PyTorch's for every packed
    sequence; 0 where none are packed."""
    return math.ceil(each * shard.documents * shard.pace_of_kernels)


def rope_by_document(shard: Shard) -> tuple[int, int]:
    """Launches forward and backward of rotary positions that are turned one packed sequence after
    another (Megatron-Core 0.19, ``_apply_rotary_pos_emb_thd``): of queries and of keys the angles'
    cosine and sine, their casts, the half turn, products, their sum and a copy, as counted in
    PyTorch 2.13."""
    if not shard.rope_by_document:
        return 0, 0
    forward = 2 * (13 + (shard.cp > 1))
    return launches_by_document(shard, forward), launches_by_document(shard, 24)


def waits_for_lengths(looped: tuple[int, int]) -> list[Op]:
    """The host reads how long the sequences are that it takes one after another."""
    return [HostSync("sequence_lengths")] if any(looped) else []


def repeat_ops(shard: Shard, grouped_bytes: int) -> Passes:
    """Keys and values of ``grouped_bytes`` written out for every query head of their group, and
    the sums of their gradients on the way back; nothing where attention takes them grouped."""
    if not shard.repeats_kv:
        return [], []
    moved = (1 + shard.heads // shard.kv_heads) * grouped_bytes
    return (
        [Streaming("kv_repeat", "memcpy", moved, launches=2)],
        [Streaming("kv_repeat_grad", "reduce", moved, launches=2)],
    )


def activation_ops(shard: Shard, name: str, elements: int) -> Passes:
    """GeLU (with bias) or SwiGLU over ``elements`` outputs.

    GeLU reads and writes once, and backward reads two tensors and writes one; the gated form has
    two inputs. Eagerly SwiGLU is two kernels, SiLU and a product, and three backward; where one
    product made both halves those that read them go element by element, and a copy puts their
    gradients together. Written out,
    ``0.5 x (1 + tanh(c (x + a x^3)))`` has six operations of one input and two of two,
    and backward undoes each, the three of the power and two sums of what reaches ``x``:
    ``18s`` and ``28s``. Autocast takes powers in fp32, and with it all that follows: a cast to
    that and one back, 70 + 6, and in the backward pass three more, 112 + 6.
    """
    forward, backward = _activation(shard, name, elements)
    if _clamps_apart(shard):
        clamp, unclamp = _clamp(shard, name, elements)
        return clamp + forward, backward + unclamp
    if shard.stores_fp8_activations:
        # Megatron-Core's ``SwiGLUFunction`` casts by PyTorch's own kernel, both ways.
        cast = Streaming(f"{name}_input_cast", "cast", 2 * (shard.element_bytes + 1) * elements)
        return [cast, *forward], [cast, *backward]
    return forward, backward


def writes_gelu(shard: Shard) -> bool:
    """Whether the activation is a GeLU in eight operations."""
    model = shard.model
    return shard.writes_gelu and model.position == "learned" and not model.gated_mlp


def clamped_inputs(shard: Shard, elements: int) -> list[Alloc]:
    """What the activation's backward keeps beside ``elements`` inputs that were clamped."""
    return [Alloc(CLAMPED, elements * shard.element_bytes)] if _clamps_apart(shard) else []


def _clamps_apart(shard: Shard) -> bool:
    return shard.model.clamped_mlp and shard.fusion != "compiled"


def _clamp(shard: Shard, name: str, elements: int) -> Passes:
    """Clamping both inputs of ``elements`` outputs, apart from any fused kernel.

    Two copies and their concatenation, ``4s + 4s``; backward, comparisons of either half with its
    one or two bounds (``3s + 2`` and ``4s + 6``, masks of one byte) and two halves put together,
    ``4s`` (Megatron-Core's experts, ``weighted_bias_quick_geglu_impl``; Transformers' alike).
    Megatron-Core makes a constant of its fused kernel on the device there, and waits for it.
    """
    s = shard.element_bytes
    waits: list[Op] = [HostSync(f"{name}_constant")] if shard.fusion == "fused" else []
    return (
        [Streaming(f"{name}_clamp", "elementwise", 8 * s * elements, launches=3), *waits],
        [Streaming(f"{name}_clamp_bwd", "elementwise", (11 * s + 8) * elements, launches=7)],
    )


def _activation(shard: Shard, name: str, elements: int) -> Passes:
    s = shard.output_bytes
    gated = shard.model.gated_mlp
    if writes_gelu(shard):
        ahead, back = ((76, 10), (118, 15)) if shard.autocast else ((18 * s, 8), (28 * s, 12))
        return (
            [Streaming(f"{name}_fwd", "elementwise", ahead[0] * elements, ahead[1])],
            [Streaming(f"{name}_bwd", "elementwise", back[0] * elements, back[1])],
        )
    if gated and shard.fusion == "eager":
        joined = shard.joined_halves and not shard.separate_projections
        one, two = (10, 10) if joined else (2 * s, 3 * s)
        halves = [Streaming(f"{name}_halves_bwd", "memcpy", 4 * s * elements)] * joined
        return (
            [
                Streaming(f"{name}_fwd", "activation", one * elements),
                Streaming(f"{name}_gate_fwd", "elementwise", two * elements),
            ],
            [
                Streaming(f"{name}_gate_bwd", "elementwise", (3 * s + two) * elements, launches=2),
                Streaming(f"{name}_bwd", "activation", two * elements),
                *halves,
            ],
        )
    inputs = 2 if gated else 1
    return (
        [Streaming(f"{name}_fwd", "activation", (inputs + 1) * s * elements)],
        [Streaming(f"{name}_bwd", "activation", (2 * inputs + 1) * s * elements)],
    )


def logged_losses(shard: Shard, logits: int) -> list[Op]:
    """What comes after a backward pass to log losses: each casts the logits to fp32 and writes
    their log-softmax (autocast's cross entropy without gradient)."""
    one = (
        Streaming("logged_loss_cast", "cast", (shard.element_bytes + 4) * logits),
        Streaming("logged_loss", "cross_entropy", 2 * 4 * logits, launches=4),
    )
    return [op for _ in range(shard.logged_losses) for op in one]


class Divergence(NamedTuple):
    """Of a loss over the vocabulary that compares with a teacher's logits: bytes a logit that the
    backward pass needs (``kept``), that either pass holds most beside, both models' logits among
    them, and that kernels move; their launches, for every ``piece`` of tokens, if any."""

    kept: int
    held: tuple[int, int]
    moved: tuple[int, int]
    launches: tuple[int, int]
    piece: int | None = None


# ModelOpt's ``LogitsKLLoss``, eager: of each model to fp32, by the temperature, log of the sum,
# subtracted (6 + 8 + 24 + 8), then exponential, difference, product and sum. The others were
# recorded on a virtual GPU, at beta 0.5: ``generalized_jsd_loss`` of TRL 1.16's GKDTrainer, and
# ``gkd_loss`` of ms-swift, by pieces; of fp32 logits, which Accelerate makes of those under
# autocast, and of 16-bit ones.
DIVERGENCES = {
    "kl": Divergence(8, (28, 12), (2 * 46 + 36, 62), (20, 9)),
    "jsd": Divergence(28, (40, 20), (200, 234), (30, 23)),
    "jsd_16bit": Divergence(14, (20, 10), (114, 144), (28, 22)),
    "jsd_pieces": Divergence(28, (25, 8), (180, 324), (22, 18), 512),
    "jsd_pieces_16bit": Divergence(14, (13, 4), (94, 194), (22, 18), 512),
}


def divergence_ops(shard: Shard, logits: int) -> Passes:
    """The divergence of this rank's ``logits`` from as many of a teacher."""
    loss = DIVERGENCES[shard.loss]
    pieces = 1 if loss.piece is None else -(-shard.tokens // loss.piece)
    forward, backward = (
        Streaming(f"divergence_{name}", "elementwise", moved * logits, launches * pieces)
        for name, moved, launches in zip(("fwd", "bwd"), loss.moved, loss.launches, strict=True)
    )
    return [forward], [backward]


def splits_softmax(shard: Shard) -> bool:
    """Whether the loss is PyTorch's of DTensors sharded by the vocabulary (``loss_parallel``,
    ``torch/distributed/tensor/parallel/loss.py``), one operation after another."""
    eager = shard.cross_entropy == "eager" and shard.loss == "next"
    return eager and shard.tp > 1 and not shard.gathers_logits


def loss_ops(shard: Shard, logits: int) -> Passes:
    """Cross entropy over this rank's ``logits``.

    ``in_place`` and ``compiled`` read the 16-bit logits twice, for the sum of exponentials and
    for the gradient; the first writes that over them and scales it in the backward pass (in
    ``pieces``, the gradient of the projection's input), the second makes it there, and where
    logits are ``returned`` adds it to zeros. The others cast to fp32, subtract the maximum,
    exponentiate, sum and normalise (Megatron's vocabulary-parallel loss; PyTorch's moves as much),
    and cast the gradient back. ``shifted`` copies what was cast, and puts the gradient of that
    into zeros. ``fp32_in_place`` is ``in_place`` on the cast logits (``ops/cross_entropy.py`` of
    Liger-Kernel, scaled unless the loss's own gradient is 1). A log-softmax in 16 bits takes rows
    one by one, whose gradients are filled, made and stacked. What a softmax split by DTensors
    moves was recorded on two virtual GPUs.
    """
    s = shard.element_bytes
    if splits_softmax(shard):
        return (
            [Streaming("loss_fwd", "elementwise", (s + 40) * logits, launches=20)],
            [Streaming("loss_bwd", "elementwise", (s + 38) * logits, launches=17)],
        )
    if shard.loss == "log_softmax" or shard.cross_entropy == "uncast":
        rows = shard.batch if shard.loss == "log_softmax" else 1
        return (
            [Streaming("loss_fwd", "cross_entropy", 2 * s * logits, launches=3 * rows)],
            [Streaming("loss_bwd", "cross_entropy", 6 * s * logits, launches=4 * rows)],
        )
    if shard.cross_entropy in ("in_place", "pieces"):
        in_pieces = shard.cross_entropy == "pieces"
        scaled = shard.tokens * shard.model.hidden_size if in_pieces else logits
        return (
            [Streaming("loss_fwd", "cross_entropy", 3 * s * logits, launches=2)],
            [Streaming("loss_bwd", "elementwise", 2 * s * scaled)],
        )
    if shard.cross_entropy in ("compiled", "returned"):
        zeros, read = [], 0
        if shard.cross_entropy == "returned":
            zeros, read = [Streaming("logits_grad_zero", "elementwise", s * logits)], s * logits
        return (
            [Streaming("loss_fwd", "cross_entropy", s * logits, launches=2)],
            [*zeros, Streaming("loss_bwd", "cross_entropy", 2 * s * logits + read)],
        )
    # Passes over fp32 tensors, and launches of both passes.
    moved, launches = (3, (2, 1)) if shard.cross_entropy == "fp32_in_place" else (5, (8, 3))
    copy, copy_bwd = [], []
    if shard.cross_entropy == "shifted":
        copy = [Streaming("logits_shift", "memcpy", 8 * logits)]
        copy_bwd = [Streaming("logits_shift_bwd", "memcpy", 12 * logits, launches=2)]
    return (
        [
            Streaming("logits_cast", "cast", (s + 4) * logits),
            *copy,
            Streaming("loss_fwd", "cross_entropy", moved * 4 * logits, launches[0]),
        ],
        [
            Streaming("loss_bwd", "cross_entropy", 2 * 4 * logits, launches[1]),
            *copy_bwd,
            Streaming("logits_grad_cast", "cast", (s + 4) * logits),
        ],
    )
