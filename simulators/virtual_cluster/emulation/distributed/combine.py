"""What a collective makes of what its members give: values, where all of them are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensors = Sequence[torch.Tensor]


def combine(
    kind: str, inputs: Sequence[Tensors], position: int, root: int | None, reduction: str
) -> list[torch.Tensor]:
    """The tensors that the member at ``position`` gets.

    Args:
        inputs: by member, its tensors: one, or one for each member (``all_to_all``,
            ``reduce_scatter`` of lists; ``scatter``: of the root only).
        root: the source of ``broadcast`` and ``scatter``, an index in the group.
        reduction: sum, avg, max, min or product.

    Raises:
        RuntimeError: where members' tensors do not fit each other.
    """
    if kind in ("all_reduce", "reduce"):
        return [_reduced([each[0] for each in inputs], position, reduction)]
    if kind == "broadcast":
        return list(inputs[root or 0])
    if kind in ("all_gather", "gather"):
        return [each[0] for each in inputs]
    if kind == "scatter":
        return [inputs[root or 0][position]]
    size = len(inputs)
    parts = [_part(each, position, size) for each in inputs]
    return [_reduced(parts, position, reduction)] if kind == "reduce_scatter" else parts


def fill(outputs: Tensors, parts: Sequence[torch.Tensor]) -> None:
    """Write what came into the tensors for it: one each, or all into one.

    Parts of other sizes are left out: nobody knows what ranks that are not here would have sent.
    """
    if len(outputs) == 1 and len(parts) > 1:
        whole = torch.cat([part.reshape(-1) for part in parts])
        parts = [whole]
    for output, part in zip(outputs, parts, strict=False):
        if output.numel() == part.numel():
            output.copy_(part.reshape(output.shape))


def _part(inputs: Tensors, position: int, size: int) -> torch.Tensor:
    return inputs[position] if len(inputs) == size else inputs[0].reshape(size, -1)[position]


def _reduced(values: Sequence[torch.Tensor], position: int, reduction: str) -> torch.Tensor:
    first = values[0]
    if all(each is first for each in values):
        if reduction in ("sum", "max") and _has_own_place(first, position, len(values)):
            return torch.full_like(first, int(first[position]))
        # Everybody is assumed to hold the same; groups have thousands of members.
        return first * len(values) if reduction == "sum" else first
    total = first
    for each in values[1:]:
        if reduction == "max":
            total = torch.maximum(total, each)
        elif reduction == "min":
            total = torch.minimum(total, each)
        elif reduction == "product":
            total = total * each
        else:
            total = total + each
    return total / len(values) if reduction == "avg" else total


def _has_own_place(counts: torch.Tensor, position: int, size: int) -> bool:
    """Whether integers are one for each member, of which this one wrote its own alone, as where
    a program asks who shares its node; of two members a pair of counts would look the same."""
    return (
        size > 2
        and counts.shape == (size,)
        and not counts.is_floating_point()
        and int(counts.count_nonzero()) == bool(counts[position]) == 1
    )
