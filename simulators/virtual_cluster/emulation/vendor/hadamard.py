"""``fast_hadamard_transform``: each row times a Hadamard matrix, in one kernel bound by memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .opaque import differentiable, launch

# What rows are filled up to with zeros (fast_hadamard_transform.cpp, 1.0.4).
_MULTIPLE = 8


@differentiable
def hadamard_transform(
    x: Tensor, scale: float = 1.0
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Rows of ``x`` (..., width) transformed. Its matrix is its own transpose, so that backward is
    the same again and keeps nothing."""
    return _transformed(x), [], _transformed


def _transformed(x: Tensor) -> Tensor:
    width = x.shape[-1]
    rows = x.contiguous()
    if width % _MULTIPLE:
        rows = torch.nn.functional.pad(rows, (0, -width % _MULTIPLE))
    out = torch.empty_like(rows)
    launch("hadamard_transform", [out], [rows])
    return out[..., :width] if width % _MULTIPLE else out
