"""Kernels that only CUDA has, or has in a form of its own: synchronised batch norm, a step of a
GRU, the CTC loss, cuDNN's samples of images on a grid. Torch has no shapes for them, as no other
device runs them.

``torch.nn.SyncBatchNorm`` calls its kernels one by one and gathers the statistics between them
(aten/src/ATen/native/cuda: Normalization.cu, RNN.cu, LossCTC.cu).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl


def register_kernels_of_cuda_only(library: Any) -> None:
    """Register the shapes that they return, for ``aten``."""
    for name, shapes in (
        ("batch_norm_stats", lambda data, eps: (_channels(data), _channels(data))),
        ("batch_norm_elemt", lambda data, *rest: torch.empty_like(data)),
        ("batch_norm_gather_stats", _gathered),
        ("batch_norm_gather_stats_with_counts", _gathered),
        ("batch_norm_backward_reduce", _reduced),
        ("batch_norm_backward_elemt", lambda gradient, data, *rest: torch.empty_like(data)),
        # cuDNN takes targets of 32 bits on the host only; other losses are torch's own.
        ("_use_cudnn_ctc_loss", lambda *_, **__: False),
        ("_use_cudnn_ctc_loss.Tensor", lambda *_, **__: False),
        ("_use_miopen_ctc_loss", lambda *_, **__: False),
        ("_use_miopen_ctc_loss.Tensor", lambda *_, **__: False),
        ("_thnn_fused_gru_cell", _gru_cell),
        ("_thnn_fused_gru_cell_backward", _gru_cell_backward),
        ("cudnn_grid_sampler", _sampled),
        ("cudnn_grid_sampler_backward", _sampled_backward),
    ):
        library.impl(name, shapes, "Meta")
    # Takes lengths in host memory beside scores on the device.
    backward = torch.ops.aten._ctc_loss_backward
    for func in (backward.default, backward.Tensor):
        if func not in op_implementations_dict:
            register_op_impl(func)(_ctc_backward)


def install_losses() -> None:
    """Let the CTC loss take lengths in host memory as numbers, as it does where no mode is on.
    Once per process."""
    original = torch.ctc_loss

    def ctc_loss(scores: Tensor, targets: Tensor, *lengths: Any, **options: Any) -> Tensor:
        if scores.is_cuda:
            lengths = (
                tuple(
                    each.tolist() if isinstance(each, Tensor) and not each.is_cuda else each
                    for each in lengths[:2]
                )
                + lengths[2:]
            )
            if not all(isinstance(each, list) for each in lengths[:2]):
                lengths = tuple(
                    torch.tensor(each, device=scores.device) if isinstance(each, list) else each
                    for each in lengths
                )
        loss: Tensor = original(scores, targets, *lengths, **options)
        return loss

    torch.ctc_loss = ctc_loss


def _ctc_backward(mode: Any, func: Any, gradient: Tensor, scores: Tensor, *rest: Any) -> Tensor:
    with mode:
        return torch.empty_like(scores)


def _channels(data: Tensor) -> Tensor:
    """One number a channel, accumulated in 32 bits or more."""
    accumulated = torch.float64 if data.dtype is torch.float64 else torch.float32
    return data.new_empty((data.shape[1],), dtype=accumulated)


def _gathered(data: Tensor, mean: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _channels(data), _channels(data)


def _reduced(
    gradient: Tensor,
    data: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    of_data: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, ...]:
    """Sums of gradients, and of gradients times distances from the mean; of weight and bias."""
    sums = [_channels(data) if of_data else data.new_empty(0) for _ in range(2)]
    own = data.dtype if weight is None else weight.dtype
    parameters = [
        data.new_empty((data.shape[1] if wanted else 0,), dtype=own)
        for wanted in (of_weight, of_bias)
    ]
    return (*sums, *parameters)


def _gru_cell(gates: Tensor, _: Tensor, state: Tensor, *biases: Any) -> tuple[Tensor, Tensor]:
    # Three gates, the recurrent part of the candidate and the state before are kept.
    return torch.empty_like(state), state.new_empty((state.shape[0], 5 * state.shape[1]))


def _gru_cell_backward(gradient: Tensor, kept: Tensor, biased: bool) -> tuple[Tensor, ...]:
    rows, width = gradient.shape
    gates = [kept.new_empty((rows, 3 * width)) for _ in range(2)]
    biases = [kept.new_empty((3 * width if biased else 0,)) for _ in range(2)]
    return (*gates, torch.empty_like(gradient), *biases)


def _sampled(data: Tensor, grid: Tensor) -> Tensor:
    return data.new_empty((*data.shape[:2], *grid.shape[1:3]))


def _sampled_backward(data: Tensor, grid: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(data), torch.empty_like(grid)
