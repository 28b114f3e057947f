"""What ranks learn from each other, when only one of them runs.

Other ranks are assumed to hold what this one holds, which is so for balanced work and for counts
that every rank derives alike: then what a rank sends to this one is what this one sends to itself.
Where a rank speaks that knows more than the others (broadcast, send), its payload is read from a
file its own run wrote, or is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.distributed.combine import (
    combine,
    each_in_its_part,
    fill,
)

from . import plain
from .payloads import MOST_ELEMENTS, Message, Post
from .shadow import Categories, Grade, Kind, Known, Missing, Shadow, compact, downgraded
from .shapes import of_cat

Pair = tuple[torch.Tensor, Shadow | None]


@dataclass(frozen=True)
class Exchange:
    """One collective or transfer as this rank sees it.

    ``kind`` as in ``Collective.kind``, or ``send`` or ``recv``. ``position`` of this rank and
    ``root`` (the source's, or the peer's of a transfer) count within the group, whose members are
    ``ranks`` of the job. ``reduction``: as ``ReduceOp`` has it, in small letters. ``splits``: the
    elements of one tensor that go to each member, where the script says how many (None: evenly
    many). ``own_part``: as ``each_in_its_part``. ``parts``: what members are taken to
    gather, where not what this one does (``Cut.parts``).
    """

    kind: str
    group: str
    sequence: int
    position: int
    size: int
    root: int | None = None
    reduction: str = "sum"
    ranks: tuple[int, ...] = ()
    splits: tuple[int, ...] | None = None
    own_part: bool | None = None
    parts: Sequence[Known] | None = None

    @property
    def rooted(self) -> bool:
        """Whether one member gives all there is."""
        return self.kind in ("broadcast", "recv", "scatter")

    @property
    def apart(self) -> bool:
        """Whether each member gets what is for it alone."""
        return self.kind in ("all_to_all", "scatter")

    @property
    def receives(self) -> bool:
        """Whether this rank gives nothing of its own."""
        return self.kind == "recv" or (self.rooted and self.root != self.position)


def exchanged(
    exchange: Exchange, inputs: Sequence[Pair], outputs: Sequence[torch.Tensor]
) -> Sequence[Shadow | None]:
    """The shadows of ``outputs`` by what this rank knows alone, None where nothing is known."""
    kind = exchange.kind
    nothing: list[Shadow | None] = [None] * len(outputs)
    if kind in ("broadcast", "send", "recv"):
        return _told(exchange, inputs, outputs)
    if exchange.size == 1 and len(inputs) == len(outputs) and not exchange.parts:
        return [shadow for _, shadow in inputs]
    shadows = [_lowered(s) for _, s in inputs]
    if not shadows or any(s is None for s in shadows):
        return nothing
    if kind in ("all_reduce", "reduce"):
        if kind == "reduce" and exchange.root != exchange.position:
            # Its buffer is left as it was, or as an intermediate result.
            return nothing
        return [_reduced(s, exchange) for s in shadows]
    if exchange.parts:
        grade = min(Grade.EXPECTED, *(part.grade for part in exchange.parts))
        return _filled(outputs, [part.value for part in exchange.parts], grade)
    if kind in ("all_gather", "gather"):
        return _gathered(exchange, inputs, shadows, outputs)
    if kind == "scatter":
        # Of the source its own part: the others do not come here.
        return [shadow for _, shadow in inputs[exchange.position :][:1]]
    mine = _pieces(inputs, shadows, exchange)[exchange.position]
    if kind == "reduce_scatter":
        return [_reduced(mine, exchange)] if len(outputs) == 1 else nothing
    listed = len(inputs) == exchange.size
    return _gathered(exchange, inputs[exchange.position :] if listed else inputs, [mine], outputs)


class Replies:
    """Whole numbers sent last to each member: those that it sends back are taken to be the same.

    Pipeline stages tell each other sizes ahead of tensors. What comes back are gradients, so what
    went ahead of fractions is preferred.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[Any, ...], Known] = {}
        self._of_fractions: dict[tuple[Any, ...], Known] = {}

    def clear(self) -> None:
        """A new trace begins."""
        self._sent.clear()
        self._of_fractions.clear()

    def note(self, exchange: Exchange, inputs: Sequence[Pair]) -> None:
        """Keep what this rank sends."""
        for tensor, shadow in inputs:
            if tensor.is_floating_point():
                self._of_fractions |= self._sent
            elif _is_exact(shadow) and tensor.numel() <= MOST_ELEMENTS:
                kept = downgraded(_whole(tensor, shadow), Grade.EXPECTED)
                self._sent[exchange.group, exchange.root, tensor.shape, tensor.dtype] = kept

    def to(self, exchange: Exchange, tensor: torch.Tensor) -> Known | None:
        """What a tensor received is taken to hold, None where nothing like it was sent."""
        key = exchange.group, exchange.root, tensor.shape, tensor.dtype
        return self._of_fractions.get(key) or self._sent.get(key)


def give(
    exchange: Exchange, inputs: Sequence[Pair], outputs: Sequence[torch.Tensor], post: Post
) -> list[torch.Tensor] | None:
    """Give other ranks what this one gives to a small exchange.

    Returns:
        What it gave, to be put together with what others give (``learn``): empty for a rank that
        only receives, None for one that has nothing to learn.
    """
    if not _is_small(exchange, inputs, outputs):
        return None
    if exchange.receives:
        return []
    to = exchange.root if exchange.kind == "send" else None
    given = (
        _for_each(exchange, inputs) if exchange.apart else [_definite(*each) for each in inputs]
    )
    for number, known in enumerate(given):
        place = (
            (0, exchange.position, number) if exchange.apart else (number, exchange.position, to)
        )
        post.send(_message(exchange, *place), known)
    own = None
    if given and all(known is not None and known.grade is Grade.EXACT for known in given):
        own = [known.value for known in given if known is not None]
    learns = exchange.kind != "send" and exchange.size > 1
    if exchange.kind in ("reduce", "gather"):
        learns = exchange.root == exchange.position
    return own if learns and not exchange.rooted else None


def learn(
    exchange: Exchange, own: list[torch.Tensor], outputs: Sequence[torch.Tensor], post: Post
) -> Sequence[Shadow | None] | None:
    """What ``outputs`` are, now that others have given their part; None when none of them has."""
    position, root = exchange.position, exchange.root
    number = 1 if exchange.apart else len(own) or len(outputs)
    others = [at for at in range(exchange.size) if at != position]
    if exchange.rooted:
        others = [-1 if root is None else root]
    to = position if exchange.apart or exchange.kind == "recv" else None
    messages = [_message(exchange, each, at, to) for at in others for each in range(number)]
    ranks = [exchange.ranks[at] for at in others for _ in range(number)]
    found = post.collect(messages, ranks)
    answers = {at: found[place * number : (place + 1) * number] for place, at in enumerate(others)}
    known = {
        at: [value for value in values if value is not None]
        for at, values in answers.items()
        if all(value is not None for value in values)
    }
    if not known:
        return None
    if exchange.rooted:
        (values,) = known.values()
        return [_fitting(value, made) for value, made in zip(values, outputs, strict=True)]
    # Members that do not run are taken to hold what this one holds.
    grade = Grade.EXACT if len(known) == len(others) else Grade.EXPECTED
    grade = min(grade, *(each.grade for values in known.values() for each in values))
    parts = exchange.parts
    members = [[part.value] for part in parts] if parts else [own] * exchange.size
    if exchange.kind == "all_to_all":
        members = [[own[position]]] * exchange.size
    for at, values in known.items():
        members[at] = [each.value for each in values]
    if exchange.kind == "all_to_all":
        return _filled(outputs, [value for (value,) in members], grade)
    made = combine(exchange.kind, members, position, root, exchange.reduction, exchange.own_part)
    return _filled(outputs, made, grade)


def _filled(
    outputs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], grade: Grade
) -> Sequence[Shadow | None]:
    made = [plain.empty(each.shape, dtype=each.dtype) for each in outputs]
    fitted = fill(made, parts)
    return [
        Known(value, grade) if fits else None for value, fits in zip(made, fitted, strict=True)
    ]


def _fitting(known: Known, made: torch.Tensor) -> Shadow | None:
    value = known.value
    return known if value.shape == made.shape and value.dtype is made.dtype else None


def _is_small(exchange: Exchange, inputs: Sequence[Pair], outputs: Sequence[torch.Tensor]) -> bool:
    """By what all members see alike, or some would wait for what others never give."""
    if exchange.reduction == "premul_sum":
        # Torch tells nobody the factor.
        return False
    sizes = [each.numel() for each in outputs]
    if exchange.kind == "all_to_all":
        if not any(each.is_floating_point() for each in outputs):
            # Rows of sizes of their own: whole numbers say what is in them.
            return True
        return exchange.splits is None and sizes[0] <= MOST_ELEMENTS
    if exchange.kind in ("reduce_scatter", "send", "reduce", "gather"):
        sizes = [tensor.numel() for tensor, _ in inputs]
    return 0 < max(sizes, default=0) <= MOST_ELEMENTS


def _definite(tensor: torch.Tensor, shadow: Shadow | None) -> Known | None:
    known = isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE
    return _whole(tensor, shadow) if known else None


def _for_each(exchange: Exchange, inputs: Sequence[Pair]) -> Sequence[Known | None]:
    """What this member gives to each, all of it known or none."""
    known = [_definite(*each) for each in inputs]
    if len(known) == exchange.size and (len(known) > 1 or exchange.splits is None):
        return known
    if len(known) != 1 or (whole := known[0]) is None:
        return [None] * exchange.size
    flat = whole.value.reshape(-1)
    sizes = exchange.splits or (flat.numel() // exchange.size,) * exchange.size
    if sum(sizes) != flat.numel():
        return [None] * exchange.size
    return [Known(part, whole.grade) for part in flat.split(sizes)]


def _whole(tensor: torch.Tensor, shadow: Shadow | None) -> Known:
    assert isinstance(shadow, Known)
    return Known(shadow.value.expand(tensor.shape).to(tensor.dtype, copy=True), shadow.grade)


def _told(
    exchange: Exchange, inputs: Sequence[Pair], outputs: Sequence[torch.Tensor]
) -> Sequence[Shadow | None]:
    if not exchange.receives:
        return [shadow for _, shadow in inputs][: len(outputs)]
    found: list[Shadow | None] = []
    for number, tensor in enumerate(outputs):
        if tensor.numel() <= MOST_ELEMENTS:
            found.append(Missing(_hint(exchange)))
        else:
            # Models and states of generators: a rank's own is as good, unlike a flag's.
            found.append(_lowered(inputs[number][1]) if number < len(inputs) else None)
    return found


def _message(exchange: Exchange, number: int, source: int, peer: int | None) -> Message:
    kind = "send" if exchange.kind in ("send", "recv") else exchange.kind
    if number:
        kind = f"{kind}.{number}"
    return Message(kind, exchange.group, exchange.sequence, source, peer)


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


# The reductions of equal values that need no more than their number.
_OF_EQUAL_VALUES = ("sum", "avg", "max", "min", "band", "bor")


def _reduced(shadow: Shadow | None, exchange: Exchange) -> Shadow | None:
    """Over as many equal contributions as the group has members."""
    if not isinstance(shadow, Known) or exchange.reduction not in _OF_EQUAL_VALUES:
        return None
    if exchange.reduction in ("sum", "max") and shadow.kind is Kind.DEFINITE:
        where = exchange.position, exchange.size, exchange.own_part
        gathered = each_in_its_part(shadow.value, *where)
        if gathered is not None:
            return Known(gathered, shadow.grade)
    if exchange.reduction != "sum":
        return shadow
    if shadow.kind is Kind.SHARE or shadow.kind is Kind.SUPPORT:
        return Known(shadow.as_mean() * exchange.size, shadow.grade, Kind.MEAN)
    return Known(shadow.value * exchange.size, shadow.grade, shadow.kind)


def _pieces(
    inputs: Sequence[Pair], shadows: Sequence[Shadow | None], exchange: Exchange
) -> Sequence[Shadow | None]:
    """The part for each member: one tensor each, or parts of one. Of choices in parts of
    sizes that the script says, each member is sent those that it owns."""
    if len(shadows) == exchange.size:
        return shadows
    (tensor, _), shadow, members = inputs[0], shadows[0], range(exchange.size)
    even = exchange.splits is None
    if isinstance(shadow, Categories):
        return [shadow if even else shadow.owned(at, exchange.size) for at in members]
    unlike = len({*(exchange.splits or ())}) > 1
    cut = tensor.dim() and not tensor.shape[0] % exchange.size and not unlike
    if not isinstance(shadow, Known) or not cut:
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
        # Of a form that is not this member's nobody knows what comes.
        return [mine if each.shape == inputs[0][0].shape else None for each in outputs]
    if not outputs or isinstance(mine, Categories):
        return [mine][: len(outputs)]
    output = outputs[0]
    if mine.value.dim() != output.dim():
        # Elements count as they lie: what takes them may be of any form.
        tensor, value = inputs[0][0], mine.value
        if value.numel() == 1:
            own = (1,) * output.dim()
        elif tensor.numel() * exchange.size != output.numel() or output.shape[0] % exchange.size:
            return nothing
        else:
            own = (output.shape[0] // exchange.size, *output.shape[1:])
            value = value.expand(tensor.shape)
        mine = Known(value.reshape(own), mine.grade, mine.kind, mine.nested)
    if not output.dim():
        return [mine]
    length, rest = divmod(output.shape[0], exchange.size)
    if rest or mine.value.shape[0] not in (1, length):
        # Shares of unequal sizes, as of rows that go where they belong.
        return nothing
    part = plain.empty((length, *output.shape[1:]), device="meta")
    joined = of_cat([part] * exchange.size, [mine] * exchange.size, 0)
    if isinstance(joined, Known):
        joined = Known(compact(joined.value), joined.grade, joined.kind, joined.nested)
    return [joined]
