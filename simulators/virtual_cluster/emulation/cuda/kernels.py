"""Kernels that torch's dispatcher must find for CUDA before any dispatch mode is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

# Kernels that only CUDA has, or has in a form of its own: synchronised batch norm, a step of a
# GRU, the CTC loss, cuDNN's samples of images on a grid. Torch has no shapes for them, as no other
# device runs them.
#
# ``torch.nn.SyncBatchNorm`` calls its kernels one by one and gathers the statistics between them
# (aten/src/ATen/native/cuda: Normalization.cu, RNN.cu, LossCTC.cu).


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
        # Sequences stay padded: nested tensors have no shapes here.
        ("_nested_tensor_from_mask_left_aligned", lambda *_: False),
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
        return original(scores, targets, *lengths, **options)

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


# cuDNN's recurrent layers: one operation each, as on CUDA, where CPUs step through time.
#
# What autograd needs of them is torch's own; the shapes of what they keep and give back are here.

# cuDNN's numbers of them (``cudnnRNNMode_t``).
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
# Numbers that a cell keeps for its gradient, in hidden sizes: activated gates, states, and for GRU
# the recurrent part of its candidate. cuDNN says its size on a device only; padding is left out.
_KEPT_STATES = {0: 1, 1: 1, 2: 6, 3: 5}


def install_recurrent() -> None:
    """Let LSTM, GRU and RNN take cuDNN's way on the device. Once per process."""
    for name, mode in _MODES.items():
        setattr(torch._VF, name, _on_device(getattr(torch._VF, name), mode))
    torch._VF._pack_padded_sequence = _packing(torch._VF._pack_padded_sequence)


def _packing(original: Any) -> Any:
    def pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        if not padded.is_cuda:
            packed: tuple[Tensor, Tensor] = original(padded, lengths, batch_first)
            return packed
        steps = padded.transpose(0, 1) if batch_first else padded
        longest_first = lengths.tolist()
        # Steps that equally many sequences take are one slice, as in torch.
        parts, sizes, before = [], [], 0
        for going_on in range(len(longest_first), 0, -1):
            end = longest_first[going_on - 1]
            if end > before:
                parts.append(steps[before:end, :going_on].reshape(-1, *padded.shape[2:]))
                sizes.extend([going_on] * (end - before))
                before = end
        return torch.cat(parts), torch.tensor(sizes)

    return pack


def register_recurrent_shapes(library: Any) -> None:
    """Register what cuDNN's recurrent operations return, for ``aten``."""
    library.impl("_cudnn_rnn", _forward_shapes, "Meta", allow_override=True)
    library.impl("_cudnn_rnn_backward", _backward_shapes, "Meta")


def _on_device(original: Any, mode: int) -> Any:
    def recurrent(data: Tensor, *args: Any) -> Any:
        if not data.is_cuda:
            return original(data, *args)
        # Packed sequences come with the number that goes on at each step, others with an axis.
        packed = not isinstance(args[2], bool)
        sizes = args[0].tolist() if packed else []
        state, weights, biased, layers, dropout, train, both = args[packed : packed + 7]
        batch_first = not packed and args[7]
        hidden, cell = state if mode == 2 else (state, None)
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
            data, hidden, *weights = (each.to(kind) for each in (data, hidden, *weights))
            cell = cell if cell is None else cell.to(kind)
        width = weights[1].shape[1] if cell is None else cell.shape[2]
        projected = hidden.shape[2] if hidden.shape[2] != width else 0
        output, last, last_cell, _, _ = torch._cudnn_rnn(
            data,
            weights,
            (4 if biased else 2) + bool(projected),
            None,
            hidden.contiguous(),
            cell,
            mode,
            width,
            projected,
            layers,
            batch_first,
            dropout,
            train,
            both,
            sizes,
            None,
        )
        return (output, last, last_cell) if mode == 2 else (output, last)

    return recurrent


def _forward_shapes(
    data: Tensor,
    weights: Sequence[Tensor],
    weight_stride: int,
    weight_buffer: Tensor | None,
    hidden: Tensor,
    cell: Tensor | None,
    mode: int,
    width: int,
    projected: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    both: bool,
    sizes: Sequence[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    directions = 2 if both else 1
    output = data.new_empty((*data.shape[:-1], (projected or width) * directions))
    steps = data.shape[:-1].numel()
    kept = _KEPT_STATES[mode] * width + (projected or width) + (width if dropout else 0)
    reserve = layers * directions * steps * kept * data.element_size() if train else 0
    return (
        output,
        torch.empty_like(hidden),
        data.new_empty(0) if cell is None else torch.empty_like(cell),
        data.new_empty(reserve, dtype=torch.uint8),
        data.new_empty(0),
    )


def _backward_shapes(
    data: Tensor,
    weights: Sequence[Tensor],
    weight_stride: int,
    weight_buffer: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    return (
        torch.empty_like(data),
        torch.empty_like(hidden),
        data.new_empty(0) if cell is None else torch.empty_like(cell),
        [torch.empty_like(weight) for weight in weights],
    )


# Operations that are one kernel on CUDA and a composition of others where no such kernel is
# registered, as in a build for CPU only.
KERNELS_OF_CUDA = ("_fused_rms_norm", "mish_backward", "silu_backward")


def register_kernels(state: RankState) -> Any:
    """Register what a CUDA build has.

    Returns:
        The registrations, which live as long as they are held.
    """
    library = torch.library.Library("aten", "IMPL")

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        # FSDP1 records streams with dispatch modes off.
        state.memory.record_stream(tensor.untyped_storage(), int(stream.stream_id))

    library.impl("record_stream", record_stream, "CUDA")
    for name in KERNELS_OF_CUDA:
        library.impl(name, _never_run, "CUDA")
    register_recurrent_shapes(library)
    register_kernels_of_cuda_only(library)
    return library


def _never_run(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("an emulated device computes nothing")
