"""A part of a layer in both passes, and how parts compose into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulators.workload.ir import (
    Alloc,
    Block,
    Collective,
    Free,
    Gemm,
    Op,
    Streaming,
)
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


def linear(
    shard: Shard,
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    gather: Collective | None = None,
    reduce: Collective | None = None,
) -> tuple[list[Op], list[Op]]:
    """Forward and backward operations of ``y[tokens, outputs] = x[tokens, inputs] W^T``.

    ``gather`` collects the sharded input before a column-parallel layer, ``reduce`` combines
    the output of a row-parallel one. As in Megatron-LM, the backward of a column-parallel
    layer gathers its input beside the dgrad GEMM and reduces the input gradient beside the
    wgrad GEMM, while a row-parallel layer must gather the output gradient first.
    With ``tp_comm_overlap`` (userbuffers) communication is cut in ``tp`` pieces that run
    beside the pieces of the GEMM, so only one piece stays exposed.
    """
    dtype = shard.precision
    forward_gemm = Gemm(f"{name}_fwd", tokens, outputs, inputs, dtype)
    dgrad = Gemm(f"{name}_dgrad", tokens, inputs, outputs, dtype, layout="NN")
    wgrad = Gemm(
        f"{name}_wgrad",
        outputs,
        inputs,
        tokens,
        dtype,
        layout="NT",
        accumulate=shard.fused_wgrad,
    )
    forward: list[Op] = []
    backward: list[Op] = []
    if dtype == "fp8":
        # Read at activation width, write the value and its transpose at one byte each.
        forward.append(
            Streaming(f"{name}_cast", "cast", tokens * inputs * (shard.element_bytes + 2))
        )
        backward.append(
            Streaming(f"{name}_grad_cast", "cast", tokens * outputs * (shard.element_bytes + 2))
        )
    if gather is not None:
        forward += _beside_gemm(shard, gather)
    if reduce is not None and shard.tp_comm_overlap:
        forward += _beside_gemm(shard, reduce)
        forward.append(forward_gemm)
    else:
        forward.append(forward_gemm)
        if reduce is not None:
            forward.append(reduce)

    if reduce is not None and shard.sp:
        # The gradient of a reduce-scatter is an all-gather of the same size.
        gathered = Collective(
            f"{reduce.name}_grad", "all_gather", reduce.bytes, "tp", reduce.dtype
        )
        backward += _beside_gemm(shard, gathered)
    if gather is not None and gather.kind == "all_gather":
        again = Collective(
            f"{gather.name}_again", "all_gather", gather.bytes, "tp", gather.dtype, 1
        )
        grad = Collective(
            f"{gather.name}_grad", "reduce_scatter", gather.bytes, "tp", gather.dtype, 1
        )
        backward += [again, dgrad, grad, wgrad]
    else:
        backward.append(dgrad)
        if gather is None and reduce is None and name in COLUMN_PARALLEL and shard.tp > 1:
            bytes_ = tokens * inputs * shard.element_bytes
            backward.append(Collective(f"{name}_grad", "all_reduce", bytes_, "tp", shard.dtype, 1))
        backward.append(wgrad)
    if not shard.fused_wgrad:
        # Without the fused kernel the gradient is added to the fp32 main gradient separately.
        backward.append(Streaming(f"{name}_accumulate", "elementwise", outputs * inputs * 10))
    return forward, backward


# Layers whose input gradient is summed over the tensor-parallel group when it is not sharded.
COLUMN_PARALLEL = frozenset({"qkv", "q_up", "kv_up", "fc1", "shared_fc1", "logits"})


def _beside_gemm(shard: Shard, op: Collective) -> list[Op]:
    if not shard.tp_comm_overlap:
        return [op]
    piece = op.bytes // shard.tp
    return [
        Collective(op.name, op.kind, piece, op.communicator, op.dtype),
        Collective(op.name, op.kind, op.bytes - piece, op.communicator, op.dtype, 1),
    ]


def column_gather(shard: Shard, name: str) -> Collective | None:
    """The all-gather before a column-parallel layer under sequence parallelism."""
    if not shard.sp:
        return None
    size = shard.tokens * shard.model.hidden_size * shard.element_bytes
    return Collective(f"{name}_gather", "all_gather", size, "tp", shard.dtype)


def row_reduce(shard: Shard, name: str) -> Collective | None:
    """The reduction after a row-parallel layer: reduce-scatter under SP, else all-reduce."""
    if shard.tp == 1:
        return None
    size = shard.tokens * shard.model.hidden_size * shard.element_bytes
    kind = "reduce_scatter" if shard.sp else "all_reduce"
    return Collective(f"{name}_reduce", kind, size, "tp", shard.dtype)


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


def bias_grad(name: str, elements: int, element_bytes: int) -> list[Op]:
    """Summing a bias gradient over tokens reads the output gradient once."""
    return [Streaming(f"{name}_bias_grad", "reduce", elements * element_bytes)]
