"""Norms, softmax, dropout and losses: memory-bound kernels that have classes of their own.

Bytes are what has to move: a norm or softmax row is read once, because it stays on the chip;
statistics over a batch are not, so batch norms read their input a second time.
"""

from __future__ import annotations

from collections.abc import Callable

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes

from .tensors import (
    FREE,
    SECTOR_BYTES,
    Lowered,
    channels_last,
    elements,
    flag,
    moved,
    named,
    on_device,
    short_name,
    tensor,
    touched_bytes,
)

# How many passes of an elementwise kernel PyTorch's own statistics of a channels-last batch take:
# they read 0.63 TB/s over the 53 norms of a ResNet-50 in bf16 (one H100 80 GB SXM, torch 2.11,
# CUDA 13.0, November 2026), where elementwise kernels move 3.0. Batches in fp16 and fp32 go to
# cuDNN, those in bf16 do not (PyTorch's _select_batch_norm_backend).
CHANNELS_LAST_STATISTICS = 4.75


def once(kind: str, launches: int = 1) -> Callable[[Op], Lowered]:
    """A rule: every tensor argument is read once, every output written once."""

    def rule(op: Op) -> Lowered:
        return streaming(op, kind, moved(on_device(op.inputs)) + moved(op.outputs), launches)

    return rule


def streaming(op: Op, kind: str, total: int, launches: int = 1) -> Lowered:
    if not total:
        return FREE
    return Lowered((Streaming(short_name(op), kind, total, launches),), kind)


def batch_norm(training_at: int | None) -> Callable[[Op], Lowered]:
    """A forward batch norm, which reads its input twice for statistics of its own.

    Every pass over memory is counted, so each streams like an elementwise kernel; the shares of
    layer norms are of passes that are not counted.
    """

    def rule(op: Op) -> Lowered:
        x = tensor(op, 0)
        reads = 1 if training_at is not None and not flag(op, training_at, default=True) else 2
        passes = float(reads)
        if reads == 2 and x.dtype == "bfloat16" and len(x.shape) > 3 and channels_last(x):
            passes += CHANNELS_LAST_STATISTICS - 1
        total = round(passes * touched_bytes(x)) + moved(op.outputs[:1])
        return streaming(op, "elementwise", total, launches=reads)

    return rule


def batch_norm_backward(op: Op) -> Lowered:
    """Reads the gradient and the input twice, for the sums and for the input's gradient."""
    reads = touched_bytes(tensor(op, 0)) + touched_bytes(tensor(op, 1))
    return streaming(op, "elementwise", 2 * reads + moved(op.outputs[:1]), launches=2)


def norm_backward(op: Op) -> Lowered:
    """Weights' gradients are a second kernel over partial sums. Without them each row is reduced
    by itself, as in forward."""
    mask = op.inputs[-1] if op.inputs else None
    if isinstance(mask, tuple) and mask and not any(mask[1:]):
        return once("norm_fwd_plain")(op)
    return once("norm_bwd_plain", launches=2)(op)


def embedding_backward(op: Op) -> Lowered:
    """Zeroes the table's gradient and adds rows to it."""
    read = moved(on_device(op.inputs))
    return streaming(op, "embedding_bwd", read + 2 * moved(op.outputs), launches=2)


def embedding(op: Op) -> Lowered:
    """Reads and writes the rows asked for, not the table."""
    indices = moved(on_device(op.inputs[1:]))
    return streaming(op, "embedding", indices + 2 * moved(op.outputs))


def embedding_bag(op: Op) -> Lowered:
    """Reads the rows asked for, not the table, and writes their sums and what backward needs."""
    table, indices = tensor(op, 0), tensor(op, 1)
    rows = elements(indices) * table.shape[1] * item_bytes(table)
    others = moved(on_device(op.inputs[1:]))
    return streaming(op, "embedding", others + rows + moved(op.outputs))


def nll_loss(op: Op) -> Lowered:
    """Picks one entry of each row: a sector of memory each."""
    target = tensor(op, 1)
    read = touched_bytes(target) + SECTOR_BYTES * elements(target)
    return streaming(op, "reduce", read, launches=2)


def nll_loss_backward(op: Op) -> Lowered:
    """Zeroes the gradient and writes one entry of each row."""
    return streaming(op, "elementwise", moved(op.outputs) + touched_bytes(tensor(op, 2)), 2)


def dropout(op: Op) -> Lowered:
    """``native_dropout(x, p, train)``; nothing is dropped outside of training."""
    if len(op.inputs) > 2 and op.inputs[2] is False:
        return streaming(op, "memcpy", 2 * touched_bytes(tensor(op, 0)))
    return once("dropout")(op)


def softmax_backward(op: Op) -> Lowered:
    """Reads the gradient and the result, writes the input's gradient."""
    specs = [spec for spec in op.inputs[:2] if isinstance(spec, TensorSpec)]
    return streaming(op, "softmax_bwd", moved(specs) + moved(op.outputs))


TABLE = {
    **named(once("norm_fwd_plain"), "native_layer_norm layer_norm _fused_rms_norm rms_norm"),
    **named(once("norm_fwd_plain", launches=2), "native_group_norm"),
    **named(
        norm_backward,
        "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward",
    ),
    **named(
        batch_norm(5),
        """native_batch_norm cudnn_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_functional""",
    ),
    **named(batch_norm(None), "_batch_norm_with_update _batch_norm_with_update_functional"),
    **named(once("elementwise"), "_batch_norm_no_update _native_batch_norm_legit_no_training"),
    **named(
        batch_norm_backward,
        "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
    ),
    **named(once("softmax_fwd"), "_softmax _safe_softmax _log_softmax _masked_softmax"),
    **named(softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    **named(once("softmax_bwd"), "_masked_softmax_backward"),
    **named(dropout, "native_dropout"),
    **named(once("dropout"), "_fused_dropout _masked_scale native_dropout_backward"),
    **named(embedding, "embedding"),
    **named(embedding_backward, "embedding_dense_backward"),
    **named(embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    **named(nll_loss, "nll_loss_forward nll_loss2d_forward"),
    **named(nll_loss_backward, "nll_loss_backward nll_loss2d_backward"),
}
