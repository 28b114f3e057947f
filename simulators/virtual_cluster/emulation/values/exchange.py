"""What ranks learn from each other, when only one of them runs.

Other ranks are assumed to hold what this one holds, which is so for balanced work and for counts
that every rank derives alike: then what a rank sends to this one is what this one sends to itself.
Where a rank speaks that knows more than the others (broadcast, send), its payload is read from a
file its own run wrote, or is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.distributed.combine import (
    combine,
    each_in_its_part,
    fill,
)

from . import plain
from .shadow import Categories, Grade, Kind, Known, Missing, Shadow, compact, downgraded
from .shapes import of_cat

# Small tensors that ranks traced one after the other send each other, by file.
#
# Only the source of a broadcast knows what it sends, and only each member what it adds to a sum.
# Its run writes that down, and runs of other ranks read it: traced in that order, they know it
# exactly.

# Flags, sizes and lists of them; data itself is not sent this way.
MOST_ELEMENTS = 4096

_DTYPES = {name: getattr(torch, name) for name in (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
    "float32", "float64",
)}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """Which transfer it was: equal on both sides. ``peer`` is the receiving member's index where
    it is for one member only."""

    kind: str
    group: str
    sequence: int
    source: int
    peer: int | None = None


class Post(Protocol):
    """Takes small tensors to other ranks."""

    def send(self, message: Message, known: Known | None) -> None:
        """This rank gives what it knows of a tensor, None for nothing."""

    def collect(self, messages: Sequence[Message], ranks: Sequence[int]) -> list[Known | None]:
        """What each of ``ranks`` gave, None when nobody knows."""


class Payloads:
    """Writes ``DIR/payloads-<rank>.jsonl`` for this rank, reads those of all other ranks."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Raises InputError for a place that is no directory or holds files of another kind."""
        self._own = directory / f"payloads-{rank:05d}.jsonl"
        if not directory.is_dir():
            raise InputError("payloads", directory, "is no directory", "an existing directory")
        self._received: dict[Message, Known] = {}
        for path in sorted(directory.glob("payloads-*.jsonl")):
            if path != self._own:
                self._received.update(_read(path))
        self._file: IO[str] | None = None

    def send(self, message: Message, known: Known | None) -> None:
        """Write down what this rank gives; what is too large is not."""
        line = None if known is None else written(message, known)
        if line is None:
            return
        if self._file is None:
            # Line by line, not whole: a live run's other ranks may read while this one runs.
            self._file = self._own.open("w", encoding="utf-8")
        self._file.write(line + "\n")
        self._file.flush()

    def collect(self, messages: Sequence[Message], ranks: Sequence[int]) -> list[Known | None]:
        """What was given, None if no run has written it."""
        return [self._received.get(message) for message in messages]

    def close(self) -> None:
        """Nothing is sent any more."""
        if self._file is not None:
            self._file.close()
            self._file = None


def written(message: Message, known: Known) -> str | None:
    """A message as a line, None when it is too large to be sent."""
    value = known.value
    name = str(value.dtype).removeprefix("torch.")
    if value.numel() > MOST_ELEMENTS or name not in _DTYPES:
        return None
    line = {
        **asdict(message),
        "dtype": name,
        "shape": list(value.shape),
        "values": [_plain(v) for v in value.reshape(-1).tolist()],
    }
    if known.grade is not Grade.EXACT:
        line["grade"] = known.grade.label
    return json.dumps(line)


def read_line(line: str) -> tuple[Message, Known]:
    """Back from ``written``.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: for what is no message.
    """
    entry = json.loads(line)
    values = [float(v) if isinstance(v, str) else v for v in entry["values"]]
    message = Message(
        str(entry["kind"]),
        str(entry["group"]),
        int(entry["sequence"]),
        int(entry["source"]),
        None if entry["peer"] is None else int(entry["peer"]),
    )
    made = plain.tensor(values, dtype=_DTYPES[entry["dtype"]])
    grade = Grade[str(entry.get("grade", "exact")).upper()]
    return message, Known(made.reshape(entry["shape"]), grade)


def _plain(value: Any) -> Any:
    # JSON knows no infinities.
    return value if not isinstance(value, float) or math.isfinite(value) else repr(value)


def _read(path: Path) -> Mapping[Message, Known]:
    found = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                message, made = read_line(line)
                found[message] = made
            except (ValueError, TypeError, KeyError, RuntimeError) as error:
                problem = f"holds no payload: {error}"
                raise InputError("payloads", f"{path}, line {number}", problem) from error
    return found


Pair = tuple[torch.Tensor, Shadow | None]


@dataclass(frozen=True)
class Exchange:
    """One collective or transfer as this rank sees it.

    ``kind`` as in ``Collective.kind``, or ``send`` or ``recv``. ``position`` of this rank and
    ``root`` (the source's, or the peer's of a transfer) count within the group, whose members are
    ``ranks`` of the job. ``reduction``: sum, avg, max, min or product. ``even``: members' shares
    are of one size. ``own_part``: as ``each_in_its_part``. ``parts``: what members are taken to
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
    even: bool = True
    own_part: bool | None = None
    parts: Sequence[Known] | None = None

    @property
    def rooted(self) -> bool:
        """Whether one member gives all there is."""
        return self.kind in ("broadcast", "recv", "scatter")

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
    if kind == "all_gather":
        return _gathered(exchange, inputs, shadows, outputs)
    if kind == "reduce_scatter":
        mine = _pieces(inputs, shadows, exchange)[exchange.position]
        return [_reduced(mine, exchange)] if len(outputs) == 1 else nothing
    if kind == "all_to_all":
        mine = _pieces(inputs, shadows, exchange)[exchange.position]
        return _gathered(exchange, inputs, [mine], outputs)
    return nothing


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
    for number, (tensor, shadow) in enumerate(inputs):
        message = _message(exchange, number, exchange.position, to)
        known = isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE
        post.send(message, _whole(tensor, shadow) if known else None)
    own = None
    if inputs and all(_is_exact(shadow) for _, shadow in inputs):
        own = [_whole(tensor, shadow).value for tensor, shadow in inputs]
    learns = exchange.kind != "send" and exchange.size > 1
    if exchange.kind == "reduce":
        learns = exchange.root == exchange.position
    return own if learns and not exchange.rooted else None


def learn(
    exchange: Exchange, own: list[torch.Tensor], outputs: Sequence[torch.Tensor], post: Post
) -> Sequence[Shadow | None] | None:
    """What ``outputs`` are, now that others have given their part; None when none of them has."""
    number = len(own) or len(outputs)
    position, root = exchange.position, exchange.root
    others = [at for at in range(exchange.size) if at != position]
    if exchange.rooted:
        others = [-1 if root is None else root]
    to = position if exchange.kind == "recv" else None
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
    if exchange.kind in ("broadcast", "recv"):
        (values,) = known.values()
        return [_fitting(value, made) for value, made in zip(values, outputs, strict=True)]
    # Members that do not run are taken to hold what this one holds.
    grade = Grade.EXACT if len(known) == len(others) else Grade.EXPECTED
    grade = min(grade, *(each.grade for values in known.values() for each in values))
    parts = exchange.parts
    members = [[part.value] for part in parts] if parts else [own] * exchange.size
    for at, values in known.items():
        members[at] = [each.value for each in values]
    made = combine(exchange.kind, members, position, root, exchange.reduction, exchange.own_part)
    return _filled(outputs, made, grade)


def _filled(
    outputs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], grade: Grade
) -> Sequence[Shadow]:
    made = [plain.empty(each.shape, dtype=each.dtype) for each in outputs]
    fill(made, parts)
    return [Known(value, grade) for value in made]


def _fitting(known: Known, made: torch.Tensor) -> Shadow | None:
    value = known.value
    return known if value.shape == made.shape and value.dtype is made.dtype else None


def _is_small(exchange: Exchange, inputs: Sequence[Pair], outputs: Sequence[torch.Tensor]) -> bool:
    """By sizes that all members see alike, or some would wait for what others never give."""
    if exchange.kind in ("scatter", "gather"):
        return False
    sizes = [each.numel() for each in outputs]
    if exchange.kind == "all_to_all":
        alike = exchange.even and len(inputs) == len(outputs) == 1
        return alike and sizes[0] <= MOST_ELEMENTS
    if exchange.kind in ("reduce_scatter", "send", "reduce"):
        sizes = [tensor.numel() for tensor, _ in inputs]
    return 0 < max(sizes, default=0) <= MOST_ELEMENTS


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


def _reduced(shadow: Shadow | None, exchange: Exchange) -> Shadow | None:
    """Over as many equal contributions as the group has members."""
    if not isinstance(shadow, Known) or exchange.reduction not in ("sum", "avg", "max", "min"):
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
    """The part for each member: one tensor each, or equal parts of one. Of choices in parts of
    sizes that the script says, each member is sent those that it owns."""
    if len(shadows) == exchange.size:
        return shadows
    (tensor, _), shadow, members = inputs[0], shadows[0], range(exchange.size)
    if isinstance(shadow, Categories):
        return [shadow if exchange.even else shadow.owned(at, exchange.size) for at in members]
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
