"""Shapes of kernels that walk lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    shapes_of,
)


@shapes_of
def multi_tensor_adam(
    grads: Sequence[Tensor],
    params: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
) -> None:
    return None


@shapes_of
def multi_tensor_sgd(
    grads: Sequence[Tensor],
    params: Sequence[Tensor],
    momenta: Sequence[Tensor],
    copies: Sequence[Tensor],
) -> None:
    return None


@shapes_of
def multi_tensor_l2norm(tensors: Sequence[Tensor], per_tensor: bool) -> tuple[Tensor, Tensor]:
    each = (len(tensors) if per_tensor else 0,)
    return empty(tensors[0], (1,), torch.float32), empty(tensors[0], each, torch.float32)


@shapes_of
def multi_tensor_scale(inputs: Sequence[Tensor], outputs: Sequence[Tensor], scale: float) -> None:
    return None
