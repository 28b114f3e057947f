"""Communication between hosts: tensors in host memory are real, and so is what arrives.

The other ranks are not here; each is assumed to hold what this one holds.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor


def communicate_on_host(
    kind: str,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    position: int,
    size: int,
    reduction: str,
) -> None:
    """Fill ``outputs`` as if every member's inputs were this rank's."""
    if any(isinstance(tensor, FakeTensor) for tensor in (*inputs, *outputs)):
        return
    with torch.no_grad():
        if kind in ("all_reduce", "reduce"):
            if reduction == "sum":
                outputs[0].mul_(size)
        elif kind in ("all_gather", "gather"):
            _gather(inputs, outputs, size)
        elif kind == "reduce_scatter":
            _reduce_scatter(inputs, outputs, position, size, reduction)
        elif kind == "all_to_all":
            _exchange(inputs, outputs)
        elif kind == "scatter" and inputs:
            outputs[0].copy_(inputs[position])


def _gather(inputs: list[torch.Tensor], outputs: list[torch.Tensor], size: int) -> None:
    if len(outputs) == 1 and size > 1:
        flat = outputs[0].view(-1)
        flat.copy_(inputs[0].reshape(-1).repeat(flat.numel() // max(1, inputs[0].numel())))
        return
    for output in outputs:
        output.copy_(inputs[0])


def _reduce_scatter(
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    position: int,
    size: int,
    reduction: str,
) -> None:
    part = inputs[position] if len(inputs) > 1 else inputs[0].reshape(size, -1)[position]
    outputs[0].copy_(part.reshape(outputs[0].shape))
    if reduction == "sum":
        outputs[0].mul_(size)


def _exchange(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    if len(inputs) == len(outputs) == 1:
        if inputs[0].numel() == outputs[0].numel():
            outputs[0].copy_(inputs[0].reshape(outputs[0].shape))
        return
    for output, given in zip(outputs, inputs, strict=True):
        if output.shape == given.shape:
            output.copy_(given)
