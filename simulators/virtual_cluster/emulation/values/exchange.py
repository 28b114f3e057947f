"""What ranks learn from each other, when only one of them runs.

Other ranks are assumed to hold what this one holds, which is so for balanced work and for counts
that every rank derives alike: then what a rank sends to this one is what this one sends to itself.
Where a rank speaks that knows more than the others (broadcast, send), its payload is read from a
file its own run wrote, or is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainscout.simulators.virtual_cluster.emulation.values import plain
from trainscout.simulators.virtual_cluster.emulation.values.payloads import (
    MOST_ELEMENTS,
    Message,
    Post,
)
from trainscout.simulators.virtual_cluster.emulation.values.shadow import (
    Categories,
    Grade,
    Kind,
    Known,
    Missing,
    Shadow,
    compact,
    downgraded,
)
from trainscout.simulators.virtual_cluster.emulation.values.shapes import of_cat

Pair = tuple[torch.Tensor, Shadow | None]


@dataclass(frozen=True)
class Exchange:
    """One collective or transfer as this rank sees it. ``position`` of this rank and ``root`` (or
    the peer) count within the group."""

    kind: str
    group: str
    sequence: int
    position: int
    size: int
    root: int | None
    reduction: str


def exchanged(
    exchange: Exchange,
    inputs: Sequence[Pair],
    outputs: Sequence[torch.Tensor],
    payloads: Post | None,
) -> Sequence[Shadow | None]:
    """The shadows of ``outputs``, None where nothing is known."""
    kind = exchange.kind
    nothing: list[Shadow | None] = [None] * len(outputs)
    if kind in ("broadcast", "send", "recv"):
        return _told(exchange, inputs, outputs, payloads)
    shadows = [_lowered(s) for _, s in inputs]
    if not shadows or any(s is None for s in shadows):
        return nothing
    if kind in ("all_reduce", "reduce"):
        if kind == "reduce" and exchange.root != exchange.position:
            # Its buffer is left as it was, or as an intermediate result.
            return nothing
        return [_reduced(s, exchange) for s in shadows]
    if kind == "all_gather":
        return _gathered(exchange, inputs, shadows, outputs)
    if kind == "reduce_scatter":
        mine = _pieces(inputs, shadows, exchange)[exchange.position]
        return [_reduced(mine, exchange)] if len(outputs) == 1 else nothing
    if kind == "all_to_all":
        mine = _pieces(inputs, shadows, exchange)[exchange.position]
        return _gathered(exchange, inputs, [mine], outputs)
    return nothing


def _told(
    exchange: Exchange,
    inputs: Sequence[Pair],
    outputs: Sequence[torch.Tensor],
    payloads: Post | None,
) -> Sequence[Shadow | None]:
    receives = exchange.kind == "recv" or (
        exchange.kind == "broadcast" and exchange.root != exchange.position
    )
    if not receives:
        for number, (tensor, shadow) in enumerate(inputs):
            if payloads is not None and _is_exact(shadow):
                assert isinstance(shadow, Known)
                payloads.send(
                    _message(exchange, number, exchange.position, exchange.root),
                    shadow.value.expand(tensor.shape),
                )
        return [shadow for _, shadow in inputs][: len(outputs)]
    found: list[Shadow | None] = []
    for number, tensor in enumerate(outputs):
        source = exchange.root if exchange.root is not None else -1
        message = _message(exchange, number, source, exchange.position)
        value = None
        if payloads is not None and tensor.numel() <= MOST_ELEMENTS:
            value = payloads.receive(message)
        if value is not None and value.shape == tensor.shape and value.dtype is tensor.dtype:
            found.append(Known(value, Grade.EXACT))
        elif tensor.numel() <= MOST_ELEMENTS:
            found.append(Missing(_hint(exchange)))
        else:
            # Models and states of generators: a rank's own is as good, unlike a flag's.
            found.append(_lowered(inputs[number][1]) if number < len(inputs) else None)
    return found


def _message(exchange: Exchange, number: int, source: int, peer: int | None) -> Message:
    alone = exchange.kind in ("send", "recv")
    kind = "send" if alone else exchange.kind
    if number:
        kind = f"{kind}.{number}"
    return Message(kind, exchange.group, exchange.sequence, source, peer if alone else None)


def _hint(exchange: Exchange) -> str:
    return (
        f"comes from member {exchange.root} of group {exchange.group} ({exchange.kind} "
        f"{exchange.sequence}), which did not run here: trace that rank first with --payloads DIR "
        "and this one with the same DIR, or trace the source rank in its place"
    )


def _is_exact(shadow: Shadow | None) -> bool:
    return (
        isinstance(shadow, Known) and shadow.grade is Grade.EXACT and shadow.kind is Kind.DEFINITE
    )


def _lowered(shadow: Shadow | None) -> Known | Categories | None:
    if isinstance(shadow, Known):
        return None if shadow.kind is Kind.RANK else downgraded(shadow, Grade.EXPECTED)
    return shadow if isinstance(shadow, Categories) else None


def _reduced(shadow: Shadow | None, exchange: Exchange) -> Shadow | None:
    """Over as many equal contributions as the group has members."""
    if not isinstance(shadow, Known) or exchange.reduction not in ("sum", "avg", "max", "min"):
        return None
    if exchange.reduction != "sum":
        return shadow
    if shadow.kind is Kind.SHARE or shadow.kind is Kind.SUPPORT:
        return Known(shadow.as_mean() * exchange.size, shadow.grade, Kind.MEAN)
    return Known(shadow.value * exchange.size, shadow.grade, shadow.kind)


def _pieces(
    inputs: Sequence[Pair], shadows: Sequence[Shadow | None], exchange: Exchange
) -> Sequence[Shadow | None]:
    """The part for each member: one tensor each, or equal parts of one."""
    if len(shadows) == exchange.size:
        return shadows
    (tensor, _), shadow = inputs[0], shadows[0]
    if isinstance(shadow, Categories):
        return [shadow] * exchange.size
    if not isinstance(shadow, Known) or not tensor.dim() or tensor.shape[0] % exchange.size:
        return [None] * exchange.size
    if shadow.value.shape[0] == 1:
        return [shadow] * exchange.size
    return [
        Known(part, shadow.grade, shadow.kind, shadow.nested)
        for part in shadow.value.chunk(exchange.size)
    ]


def _gathered(
    exchange: Exchange,
    inputs: Sequence[Pair],
    shadows: Sequence[Shadow | None],
    outputs: Sequence[torch.Tensor],
) -> Sequence[Shadow | None]:
    """Every member's contribution, this one's as often as there are members."""
    nothing: list[Shadow | None] = [None] * len(outputs)
    mine = shadows[0]
    if not isinstance(mine, (Known, Categories)):
        return nothing
    if len(outputs) == exchange.size and exchange.size > 1:
        return [mine] * len(outputs)
    if isinstance(mine, Categories):
        return [mine]
    output = outputs[0]
    if mine.value.dim() != output.dim():
        # The flat form may stack what it gathers; only one number for all survives that.
        if mine.value.numel() == 1:
            return [Known(mine.value.reshape((1,) * output.dim()), mine.grade, mine.kind)]
        shape = (1, *mine.value.shape)
        if output.dim() != len(shape):
            return nothing
        mine = Known(mine.value.reshape(shape), mine.grade, mine.kind, mine.nested)
    if not output.dim():
        return [mine]
    length, rest = divmod(output.shape[0], exchange.size)
    if rest:
        return nothing
    part = plain.empty((length, *output.shape[1:]), device="meta")
    joined = of_cat([part] * exchange.size, [mine] * exchange.size, 0)
    if isinstance(joined, Known):
        joined = Known(compact(joined.value), joined.grade, joined.kind, joined.nested)
    return [joined]
