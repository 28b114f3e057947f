"""A part of a layer in both passes, how parts compose into blocks, and the two that every
sub-layer has: norm and residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .elementwise import kept_of_norm, norm_ops, writes_norm
from .ir import (
    Alloc,
    Block,
    Collective,
    Free,
    Gemm,
    GroupedGemm,
    Op,
    Streaming,
    weight_elements,
)
from .shard import Shard

ATTENTION_RESIDUAL = "attention_residual"
# The projection into a mixer with a state, which nothing recomputes.
MIXER_IN = "mixer_in"
# What weighs what experts made, where operations of its own do (``moe``).
WEIGH = "weigh_copies"
ROUTER_GRAPH = "router_graph"


@dataclass(frozen=True)
class Part:
    """Operations of one sub-module.

    ``module`` is the name recomputation knows it by. ``saved`` are the tensors the backward
    needs; ``forward_peak_bytes`` and ``backward_peak_bytes`` the most each pass holds at once
    beyond what was live before it and beyond ``saved``. Recomputation drops some of ``saved``
    after the forward pass (``dropped``, by tag) and makes them again by ``rerun`` before the
    backward.
    """

    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    saved: tuple[Alloc, ...] = ()
    forward_peak_bytes: int = 0
    backward_peak_bytes: int = 0
    module: str = ""
    dropped: frozenset[str] = frozenset()
    rerun: tuple[Op, ...] = ()

    @property
    def saved_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.saved)

    @property
    def forward_only(self) -> Part:
        """Without gradients: nothing outlives the pass."""
        return Part(
            self.forward, (), forward_peak_bytes=self.forward_peak_bytes + self.saved_bytes
        )

    @property
    def kept(self) -> tuple[Alloc, ...]:
        """What of ``saved`` outlives the forward pass."""
        if not self.dropped:
            return self.saved
        return tuple(tensor for tensor in self.saved if tensor.tag not in self.dropped)

    @property
    def kept_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.kept)


def compose(
    name: str, parts: Sequence[Part], *, rerun_at_once: bool = False
) -> tuple[Block, Block]:
    """Forward and backward blocks of parts that run one after another.

    ``rerun_at_once``: what is recomputed is so for all parts before the first backward, not part
    by part.
    """
    forward: list[Op] = []
    backward: list[Op] = []
    forward_peak = live = 0
    # Of each part what outlives the forward pass, its bytes, and those that are made again.
    sizes: list[tuple[tuple[Alloc, ...], int, int]] = []
    for part in parts:
        kept, saved_bytes = part.kept, part.saved_bytes
        kept_bytes = sum(tensor.bytes for tensor in kept) if part.dropped else saved_bytes
        sizes.append((kept, kept_bytes, saved_bytes - kept_bytes))
        forward += part.forward
        forward += kept
        forward_peak = max(forward_peak, live + saved_bytes + part.forward_peak_bytes)
        live += kept_bytes
    freed = made = waiting = 0
    held: list[tuple[int, int]] = []
    if rerun_at_once:
        backward += [op for part in parts for op in part.rerun]
        waiting = sum(again for _, _, again in sizes)
    for part, (kept, kept_bytes, again) in zip(reversed(parts), reversed(sizes), strict=True):
        if rerun_at_once:
            again, waiting = waiting, waiting - again
        else:
            backward += part.rerun
        backward += part.backward
        # Most is there when the first of its products has made a gradient.
        gradients = [*filter(None, map(weight_elements, part.backward)), 0]
        held.append((again + part.backward_peak_bytes - freed, made + gradients[0]))
        made += sum(gradients)
        backward += [Free(tensor.tag, tensor.bytes) for tensor in kept]
        freed += kept_bytes
    return (
        Block(
            f"{name}_forward",
            tuple(forward),
            forward_peak,
            sum(len(part.forward) for part in parts),
        ),
        Block(
            f"{name}_backward",
            tuple(backward),
            max((size for size, _ in held), default=0),
            sum(len(part.rerun) for part in parts),
            moments=_moments(held),
        ),
    )


def _moments(held: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """``Block.moments`` of bytes that a pass holds, with the gradients that are there, in order:
    those behind which none holds as much."""
    found: list[tuple[int, int]] = []
    for size, made in reversed(held):
        if not found or size > found[-1][0]:
            found.append((size, made))
    return tuple((found[-1][0] - size, made) for size, made in found) or ((0, 0),)


def until_needed(ops: Sequence[Op]) -> tuple[Op, ...]:
    """A forward pass without its last product and what follows: no gradient reads their results,
    so that recomputation which stops early, or whose dead code is removed, never makes them. Where
    weights multiply what experts made, the weights' gradients read it."""
    weighed = [at for at, op in enumerate(ops) if getattr(op, "name", "") == WEIGH]
    products = [op for op in ops if isinstance(op, Gemm | GroupedGemm)]
    if not products:
        return tuple(ops)
    stem = products[-1].name.removesuffix("_fwd")
    first = next(
        index
        for index, op in enumerate(ops)
        if isinstance(op, Gemm | GroupedGemm | Collective) and op.name.startswith(stem)
    )
    return tuple(ops[: max(first, *weighed)] if weighed else ops[:first])


def checkpointed(
    name: str,
    parts: Sequence[Part],
    input_bytes: int,
    *,
    beside_bytes: int = 0,
    stops_early: bool = False,
    stays_bytes: int = 0,
) -> tuple[Block, Block]:
    """Blocks of a fully recomputed layer: only its input is kept, the forward runs twice, the
    second time ``until_needed`` if it ``stops_early``. ``beside_bytes`` are beside that input and
    what the layer keeps when it runs again, of which ``stays_bytes`` go with its next forward
    pass."""
    plain_forward, plain_backward = compose(name, parts)
    rerun = tuple(op for op in plain_forward.ops if not isinstance(op, Alloc))
    again = until_needed(rerun) if stops_early else rerun
    backward = tuple(op for op in plain_backward.ops if not isinstance(op, Free))
    saved = sum(part.kept_bytes for part in parts) + beside_bytes
    transient = max((part.forward_peak_bytes for part in parts), default=0)
    first, behind = plain_forward.peak_bytes + beside_bytes, saved + plain_backward.peak_bytes
    held = [(first, 0), *((behind - less, made) for less, made in plain_backward.moments[::-1])]
    goes = (Free(ROUTER_GRAPH, stays_bytes),) if stays_bytes else ()
    stays = (Alloc(ROUTER_GRAPH, stays_bytes),) if stays_bytes else ()
    return (
        Block(
            f"{name}_forward",
            (*rerun, Alloc("layer_input", input_bytes), *goes),
            saved + transient,
            plain_forward.forward_ops,
        ),
        Block(
            f"{name}_backward",
            (*again, *backward, Free("layer_input", input_bytes), *stays),
            max(first, behind),
            plain_forward.forward_ops + plain_backward.forward_ops,
            moments=_moments(held),
        ),
    )


def beside_rerun_bytes(shard: Shard) -> int:
    """What there is beside a layer's input and all that it keeps when it runs again: its result,
    unless it stops early, less the input, which is what its first norm keeps, but for an RMSNorm
    in operations, which keeps an fp32 copy of a 16-bit one; of several streams what mixes them
    keeps it."""
    keeps_input = (
        shard.stream_bytes == 4 or shard.model.residual_streams > 1 or not writes_norm(shard)
    )
    more = (not shard.recompute_stops_early) - keeps_input
    return more * shard.local_tokens * shard.model.residual_width * shard.stream_bytes


def hidden_norm(shard: Shard, name: str, keep_output: float) -> Part:
    """A norm of the hidden state."""
    return norm(shard, name, shard.local_tokens, shard.model.hidden_size, keep_output=keep_output)


def norm(shard: Shard, name: str, tokens: int, width: int, *, keep_output: float) -> Part:
    """LayerNorm or RMSNorm.

    ``keep_output``: bytes per element at which the next layer keeps the output (0: not kept).
    Backward an RMSNorm in operations holds its fp32 input, five fp32 tensors as large, and the
    gradient that goes past it (``LlamaRMSNorm`` of Transformers 5 on virtual GPUs).
    """
    elements, size = tokens * width, shard.stream_bytes
    saved = [Alloc(f"{name}_input", elements * size), *kept_of_norm(shard, name, elements)]
    if keep_output:
        saved.append(Alloc(f"{name}_output", int(elements * keep_output)))
    forward, backward = norm_ops(shard, name, elements)
    held = 2 * elements * size
    if writes_norm(shard):
        held = (24 + size) * elements - sum(tensor.bytes for tensor in saved)
    return Part(
        forward=tuple(forward),
        backward=tuple(backward),
        saved=tuple(saved),
        backward_peak_bytes=held,
        module="layernorm",
    )


def residual(shard: Shard, name: str) -> Part:
    """Bias, dropout and residual addition in one kernel (Megatron's bias_dropout_add); eagerly,
    dropout is one of its own, and so is the cast of a gradient of an fp32 stream."""
    elements, size = shard.local_tokens * shard.model.hidden_size, shard.element_bytes
    stream = shard.stream_bytes
    mask = elements if shard.model.dropout else 0
    apart = 2 * elements * size if mask and shard.fusion == "eager" else 0
    added, cast = 3 * elements * stream, elements * size if shard.autocast else 0
    backward: list[Op] = []
    scales, saved = list[Op](), list[Alloc]()
    if shard.model.layer_scale:
        scales.append(Streaming(f"{name}_scale_fwd", "elementwise", 2 * elements * size))
        saved += [Alloc(f"{name}_unscaled", elements * size)] * shard.trains
        # The vector's gradient is a sum over tokens.
        moved = (5 if shard.trains else 2) * elements * size
        backward.append(Streaming(f"{name}_scale_bwd", "elementwise", moved, 2))
    if shard.casts_apart:
        backward.append(Streaming(f"{name}_grad_cast", "cast", elements * stream + cast))
        cast = 0
    backward.insert(0, Streaming(f"{name}_grad_add", "elementwise", added + cast))
    if mask:
        backward.insert(0, Streaming(f"{name}_dropout_bwd", "dropout", 2 * elements * size + mask))
    return Part(
        forward=(
            *scales,
            Streaming(
                f"{name}_add",
                "dropout" if mask else "elementwise",
                apart + (2 * stream + size) * elements + mask,
                launches=2 if apart else 1,
            ),
        ),
        backward=tuple(backward),
        saved=(*saved, Alloc(f"{name}_mask", mask)) if mask else tuple(saved),
        forward_peak_bytes=(stream + size) * elements,
        backward_peak_bytes=2 * elements * stream,
        module=name,
    )
