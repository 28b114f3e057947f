"""Kernels that walk lists of tensors, with the calling convention of Apex's ``amp_C``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel

Lists = Sequence[Sequence[Tensor]]


class MultiTensorApply:
    """Calls a kernel with a chunk size, as Apex and Transformer Engine do."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, operation: Callable[..., Any], noop_flag: Tensor, lists: Lists, *arguments: Any
    ) -> Any:
        return operation(self.chunk_size, noop_flag, lists, *arguments)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def _local(lists: Lists) -> list[list[Tensor]]:
    """This rank's parts, where tensors are distributed: what a kernel is given addresses of."""
    return [[getattr(each, "_local_tensor", each) for each in tensors] for tensors in lists]


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, lists: Lists, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """The 2-norm over all tensors, and of each."""
    norm, each = kernel("multi_tensor_l2norm")(_local(lists)[0], bool(per_tensor))
    return norm, each


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, lists: Lists, inv_scale: Tensor, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """As ``multi_tensor_l2norm``, of what the tensors are once they are unscaled."""
    return multi_tensor_l2norm(chunk_size, noop_flag, lists, per_tensor)


def multi_tensor_scale_tensor(
    chunk_size: int, noop_flag: Tensor, lists: Lists, scale: Tensor
) -> None:
    """``outputs = scale * inputs``, of a scale on the device."""
    multi_tensor_scale(chunk_size, noop_flag, lists, 1.0)


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, lists: Lists, scale: float) -> None:
    """``outputs = scale * inputs``."""
    inputs, outputs = _local(lists)
    kernel("multi_tensor_scale")(list(inputs), list(outputs), float(scale))


def multi_tensor_adam(
    chunk_size: int, noop_flag: Tensor, lists: Lists, *hyperparameters: Any
) -> None:
    """One step of Adam on ``[grads, params, exp_avgs, exp_avg_sqs]`` and, if there, masters."""
    grads, params, exp_avgs, exp_avg_sqs, *masters = _local(lists)
    kernel("multi_tensor_adam")(
        list(grads),
        list(params),
        list(exp_avgs),
        list(exp_avg_sqs),
        list(masters[0]) if masters else [],
    )


def multi_tensor_sgd(
    chunk_size: int, noop_flag: Tensor, lists: Lists, *hyperparameters: Any
) -> None:
    """One step of SGD on ``[grads, params, momenta]`` and, if there, 16-bit copies."""
    grads, params, momenta, *copies = _local(lists)
    kernel("multi_tensor_sgd")(
        list(grads), list(params), list(momenta), list(copies[0]) if copies else []
    )
