"""A part of a layer in both passes, how parts compose into blocks, and the two that every
sub-layer has: norm and residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulators.workload.ir import Alloc, Block, Free, Op, Streaming
from simulators.workload.shard import Shard


@dataclass(frozen=True)
class Part:
    """Operations of one sub-module.

    ``saved`` are the tensors the forward keeps for the backward; ``forward_peak_bytes`` and
    ``backward_peak_bytes`` the most each pass holds at once beyond what was live before it
    and beyond ``saved``. A ``recomputed`` part keeps nothing and runs its forward again
    before its backward.
    """

    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    saved: tuple[Alloc, ...] = ()
    forward_peak_bytes: int = 0
    backward_peak_bytes: int = 0
    recomputed: bool = False

    @property
    def saved_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.saved)


def compose(name: str, parts: Sequence[Part]) -> tuple[Block, Block]:
    """Forward and backward blocks of parts that run one after another."""
    forward: list[Op] = []
    backward: list[Op] = []
    forward_peak = backward_peak = live = 0
    for part in parts:
        kept = () if part.recomputed else part.saved
        forward += part.forward
        forward += kept
        live += sum(tensor.bytes for tensor in kept)
        forward_peak = max(forward_peak, live + part.forward_peak_bytes)
    freed = 0
    for part in reversed(parts):
        if part.recomputed:
            backward += part.forward
            extra = part.saved_bytes
        else:
            extra = 0
        backward += part.backward
        backward_peak = max(backward_peak, extra + part.backward_peak_bytes - freed)
        if not part.recomputed:
            backward += [Free(tensor.tag, tensor.bytes) for tensor in part.saved]
            freed += part.saved_bytes
    return (
        Block(f"{name}_forward", tuple(forward), forward_peak),
        Block(f"{name}_backward", tuple(backward), max(0, backward_peak)),
    )


def checkpointed(name: str, parts: Sequence[Part], input_bytes: int) -> tuple[Block, Block]:
    """Blocks of a fully recomputed layer: only its input is kept, the forward runs twice."""
    plain_forward, plain_backward = compose(name, parts)
    rerun = tuple(op for op in plain_forward.ops if not isinstance(op, Alloc))
    backward = tuple(op for op in plain_backward.ops if not isinstance(op, Free))
    saved = sum(part.saved_bytes for part in parts if not part.recomputed)
    transient = max((part.forward_peak_bytes for part in parts), default=0)
    return (
        Block(f"{name}_forward", (*rerun, Alloc("layer_input", input_bytes)), saved + transient),
        Block(
            f"{name}_backward",
            (*rerun, *backward, Free("layer_input", input_bytes)),
            max(plain_forward.peak_bytes, saved + plain_backward.peak_bytes),
        ),
    )


def norm(shard: Shard, name: str, tokens: int, width: int, *, keep_output: int) -> Part:
    """LayerNorm or RMSNorm: reads and writes its input once forward, three passes backward.

    ``keep_output``: bytes per element at which the next layer keeps the output (0: not kept).
    """
    elements, size = tokens * width, shard.element_bytes
    saved = [Alloc(f"{name}_input", elements * size)]
    if keep_output:
        saved.append(Alloc(f"{name}_output", elements * keep_output))
    return Part(
        forward=(Streaming(f"{name}_fwd", "norm_fwd", 2 * elements * size),),
        backward=(Streaming(f"{name}_bwd", "norm_bwd", 3 * elements * size, launches=2),),
        saved=tuple(saved),
        backward_peak_bytes=2 * elements * size,
    )


def residual(shard: Shard, name: str) -> Part:
    """Bias, dropout and residual addition in one kernel (Megatron's bias_dropout_add)."""
    elements, size = shard.local_tokens * shard.model.hidden_size, shard.element_bytes
    mask = elements if shard.model.dropout else 0
    backward: list[Op] = [Streaming(f"{name}_grad_add", "elementwise", 3 * elements * size)]
    if mask:
        backward.insert(0, Streaming(f"{name}_dropout_bwd", "dropout", 2 * elements * size + mask))
    return Part(
        forward=(
            Streaming(
                f"{name}_add", "dropout" if mask else "elementwise", 3 * elements * size + mask
            ),
        ),
        backward=tuple(backward),
        saved=(Alloc(f"{name}_mask", mask),) if mask else (),
        forward_peak_bytes=2 * elements * size,
        backward_peak_bytes=2 * elements * size,
    )
