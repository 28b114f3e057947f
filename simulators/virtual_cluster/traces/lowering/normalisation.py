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
    Lowered,
    elements,
    flag,
    moved,
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
        if reads == 2 and x.dtype == "bfloat16" and _channels_last(x):
            passes += CHANNELS_LAST_STATISTICS - 1
        total = round(passes * touched_bytes(x)) + moved(op.outputs[:1])
        return streaming(op, "elementwise", total, launches=reads)

    return rule


def _channels_last(spec: TensorSpec) -> bool:
    if spec.strides is None or len(spec.shape) < 4 or spec.shape[1] == 1:
        return False
    return spec.strides[1] == 1


def batch_norm_backward(op: Op) -> Lowered:
    """Reads the gradient and the input twice, for the sums and for the input's gradient."""
    reads = touched_bytes(tensor(op, 0)) + touched_bytes(tensor(op, 1))
    return streaming(op, "elementwise", 2 * reads + moved(op.outputs[:1]), launches=2)


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
    picked = 1
    for length in target.shape:
        picked *= length
    return streaming(op, "reduce", touched_bytes(target) + 32 * picked, launches=2)


def nll_loss_backward(op: Op) -> Lowered:
    """Zeroes the gradient and writes one entry of each row."""
    return streaming(op, "elementwise", moved(op.outputs) + touched_bytes(tensor(op, 2)), 2)


def dropout(op: Op) -> Lowered:
    """``native_dropout(x, p, train)``; nothing is dropped outside of training."""
    if len(op.inputs) > 2 and op.inputs[2] is False:
        return streaming(op, "memcpy", 2 * touched_bytes(tensor(op, 0)))
    return once("dropout")(op)


def _backward_norm(op: Op) -> Lowered:
    # Weights' gradients are a second kernel over partial sums.
    return once("norm_bwd_plain", launches=2)(op)


def softmax_backward(op: Op) -> Lowered:
    """Reads the gradient and the result, writes the input's gradient."""
    specs = [spec for spec in op.inputs[:2] if isinstance(spec, TensorSpec)]
    return streaming(op, "softmax_bwd", moved(specs) + moved(op.outputs))


TABLE = {
    "aten.native_layer_norm": once("norm_fwd_plain"),
    "aten.layer_norm": once("norm_fwd_plain"),
    "aten.native_layer_norm_backward": _backward_norm,
    "aten.native_group_norm": once("norm_fwd_plain", launches=2),
    "aten.native_group_norm_backward": _backward_norm,
    "aten._fused_rms_norm": once("norm_fwd_plain"),
    "aten.rms_norm": once("norm_fwd_plain"),
    "aten._fused_rms_norm_backward": _backward_norm,
    "aten.native_batch_norm": batch_norm(5),
    "aten.cudnn_batch_norm": batch_norm(5),
    "aten._native_batch_norm_legit": batch_norm(5),
    "aten._native_batch_norm_legit_functional": batch_norm(5),
    "aten._batch_norm_with_update": batch_norm(None),
    "aten._batch_norm_with_update_functional": batch_norm(None),
    "aten._batch_norm_no_update": once("elementwise"),
    "aten.native_batch_norm_backward": batch_norm_backward,
    "aten.cudnn_batch_norm_backward": batch_norm_backward,
    "aten.batch_norm_backward": batch_norm_backward,
    "aten._softmax": once("softmax_fwd"),
    "aten._safe_softmax": once("softmax_fwd"),
    "aten._log_softmax": once("softmax_fwd"),
    "aten._softmax_backward_data": softmax_backward,
    "aten._log_softmax_backward_data": softmax_backward,
    "aten.native_dropout": dropout,
    "aten._fused_dropout": once("dropout"),
    "aten._masked_scale": once("dropout"),
    "aten._masked_softmax": once("softmax_fwd"),
    "aten._masked_softmax_backward": once("softmax_bwd"),
    "aten.native_dropout_backward": once("dropout"),
    "aten.embedding": embedding,
    "aten.embedding_dense_backward": embedding_backward,
    "aten._embedding_bag": embedding_bag,
    "aten._embedding_bag_forward_only": embedding_bag,
    "aten.nll_loss_forward": nll_loss,
    "aten.nll_loss2d_forward": nll_loss,
    "aten.nll_loss_backward": nll_loss_backward,
    "aten.nll_loss2d_backward": nll_loss_backward,
}
