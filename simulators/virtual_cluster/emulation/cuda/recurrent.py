"""cuDNN's recurrent layers: one operation each, as on CUDA, where CPUs step through time.

What autograd needs of them is torch's own; the shapes of what they keep and give back are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
