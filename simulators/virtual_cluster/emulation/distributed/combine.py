"""What a collective makes of what its members give: values, where all of them are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensors = Sequence[torch.Tensor]


# What is made of two members' values; a mean is divided afterwards.
_OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
REDUCTIONS = ("sum", "avg", "premul_sum", *_OF_TWO)


def combine(
    kind: str,
    inputs: Sequence[Tensors],
    position: int,
    root: int | None,
    reduction: str,
    own_part: bool | None = None,
) -> list[torch.Tensor]:
    """The tensors that the member at ``position`` gets.

    Args:
        inputs: by member, its tensors: one, or one for each member (``all_to_all``,
            ``reduce_scatter`` of lists; ``scatter``: of the root only).
        root: the source of ``broadcast`` and ``scatter``, an index in the group.
        reduction: sum, avg, max, min, product, band, bor or bxor.
        own_part: as ``each_in_its_part``.

    Raises:
        RuntimeError: where members' tensors do not fit each other.
    """
    if kind in ("all_reduce", "reduce"):
        return [_reduced([each[0] for each in inputs], position, reduction, own_part)]
    if kind == "broadcast":
        return list(inputs[root or 0])
    if kind in ("all_gather", "gather"):
        return [each[0] for each in inputs]
    if kind == "scatter":
        return [inputs[root or 0][position]]
    size = len(inputs)
    parts = [_part(each, position, size) for each in inputs]
    return [_reduced(parts, position, reduction)] if kind == "reduce_scatter" else parts


def fill(outputs: Tensors, parts: Sequence[torch.Tensor]) -> list[bool]:
    """Write what came into the tensors for it: one each, or all into one.

    Parts of other sizes are left out: nobody knows what ranks that are not here would have sent.

    Returns:
        Of each of ``outputs``, whether it was written.
    """
    if len(outputs) == 1 and len(parts) > 1:
        whole = torch.cat([part.reshape(-1) for part in parts])
        parts = [whole]
    fits = [output.numel() == part.numel() for output, part in zip(outputs, parts, strict=False)]
    for output, part, written in zip(outputs, parts, fits, strict=False):
        if written:
            output.copy_(part.reshape(output.shape))
    return fits + [False] * (len(outputs) - len(fits))


def _part(inputs: Tensors, position: int, size: int) -> torch.Tensor:
    return inputs[position] if len(inputs) == size else inputs[0].reshape(size, -1)[position]


def _reduced(
    values: Sequence[torch.Tensor], position: int, reduction: str, own_part: bool | None = None
) -> torch.Tensor:
    own, filled = values[position], None
    if reduction in ("sum", "max"):
        filled = each_in_its_part(own, position, len(values), own_part)
    if filled is not None:
        parts = zip(filled.chunk(len(values)), values, strict=True)
        absent = torch.cat(
            [part if each is own else torch.zeros_like(part) for part, each in parts]
        )
        values = [absent, *(each for each in values if each is not own)]
    first = values[0]
    if reduction not in ("product", "bxor") and all(each is first for each in values):
        # Everybody is assumed to hold the same; groups have thousands of members.
        return first * len(values) if reduction == "sum" else first
    put_together = _OF_TWO.get(reduction, torch.add)
    total = first
    for each in values[1:]:
        total = put_together(total, each)
    return total / len(values) if reduction == "avg" else total


def each_in_its_part(
    whole: torch.Tensor, position: int, size: int, own_part: bool | None
) -> torch.Tensor | None:
    """What a sum or maximum makes of equal parts, one for each member, of which this one filled
    its own alone, where every member fills its own likewise; None for other tensors.

    So programs compare norms, ask who shares their node, and gather objects as bytes. They make
    zeros and write their part (``own_part``; None: nobody knows). Of two members a count and a sum
    that is 0 would look the same; nobody sums bytes otherwise.
    """
    if not whole.dim() or whole.shape[0] % size or (whole.dim() > 1 and whole.shape[0] != size):
        return None
    if own_part is None:
        own_part = size > 2 or whole.dtype == torch.uint8
    if size == 1 or not own_part:
        return None
    own = whole.chunk(size)[position]
    if not 0 < int(own.count_nonzero()) == int(whole.count_nonzero()):
        return None
    return torch.cat([own] * size)
