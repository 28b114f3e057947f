"""Pipeline schedules of the user's own, as PyTorch writes and loads them.

A CSV file with a row for each rank of the pipeline and in it the passes of that rank in order:
``2F0`` is the forward pass of the model's part 2 (counted from the model's beginning) for
micro-batch 0; ``B`` a whole backward pass, ``I`` the gradient of its input, ``W`` that of its
weights. Empty cells are pauses of the drawing and mean nothing. This is what
``torch.distributed.pipelining`` calls compute-only; it adds the messages itself, and so does the
replay.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError, read_text

SUFFIX = ".csv"
FIELD = "recipe.schedule"
KINDS = "FBIW"
"""Forward, whole backward, gradient of the input, gradient of the weights."""
_ALLOWED = "a CSV file with a row for each rank: 0F0,0F1,0B0 (part, F B I or W, micro-batch)"
_PASS = re.compile(rf"(\d+)([{KINDS}])(\d+)")
# Two passes that run as one, each exchange of tokens beside the other's kernels.
_TOGETHER = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_DIGITS = 8

Pass = tuple[str, int, int]
"""A kind, a part of the model, a micro-batch."""


@dataclass(frozen=True)
class ScheduleFile:
    """The orders of one file.

    ``orders``: by rank, its passes: kind (as in ``KINDS``), chunk of the rank, micro-batch.
    ``route``: rank and chunk of each part of the model, from its beginning.
    """

    orders: tuple[tuple[Pass, ...], ...]
    route: tuple[tuple[int, int], ...]
    chunks: int
    micro_batches: int

    @property
    def stages(self) -> int:
        return len(self.orders)

    @property
    def splits_backward(self) -> bool:
        return any(kind in "IW" for order in self.orders for kind, _, _ in order)


def pinned(schedule: str) -> str:
    """A file's name with the digest of its content behind it, so that what is kept by name is
    kept by content.

    Raises:
        InputError: for a file that is not there, or is no schedule.
    """
    name = f"{schedule}#{_digest(read_text(FIELD, Path(schedule), allowed=_ALLOWED))}"
    read_schedule(name)
    return name


def is_file(schedule: str) -> bool:
    """Whether a schedule's name is that of a file."""
    return f"{SUFFIX}#" in schedule


def file_path(schedule: str) -> str:
    """The path in a pinned name."""
    return schedule.rpartition("#")[0]


@functools.lru_cache(maxsize=16)
def read_schedule(name: str) -> ScheduleFile:
    """The file of a pinned name, read once.

    Raises:
        InputError: for a file that is not there, is no schedule, cannot run to its end, or has
            another content than its name says.
    """
    path, _, digest = name.rpartition("#")
    content = read_text(FIELD, Path(path), allowed=_ALLOWED)
    if _digest(content) != digest:
        raise InputError(FIELD, path, f"has changed meanwhile (was {digest})")
    return parse_schedule(content, path)


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]


def parse_schedule(content: str, path: str) -> ScheduleFile:
    """The schedule that a file's text says.

    Raises:
        InputError: for what is no schedule, or cannot run to its end.
    """
    try:
        cells = [row for row in csv.reader(content.splitlines()) if any(map(str.strip, row))]
    except csv.Error as error:
        raise InputError(FIELD, path, f"cannot be read: {error}", _ALLOWED) from error
    rows = [list(_row(row, path)) for row in cells]
    if not rows:
        raise InputError(FIELD, path, "is empty", _ALLOWED)
    holder = _holders(rows, path)
    held: list[list[int]] = [[] for _ in rows]
    for part, rank in holder.items():
        held[rank].append(part)
    chunks = len(held[0])
    for rank, parts in enumerate(held):
        if len(parts) != chunks:
            problem = f"rank {rank} has {len(parts)} parts of the model and rank 0 has {chunks}"
            raise InputError(FIELD, path, problem, "equally many on every rank")
    route = tuple((holder[part], held[holder[part]].index(part)) for part in range(len(holder)))
    _check_neighbours(route, len(rows), path)
    micro_batches = 1 + max(micro for row in rows for _, _, micro in row)
    _check_complete(rows, held, micro_batches, path)
    _check_ends(rows, holder, path)
    orders = tuple(
        tuple((kind, held[rank].index(part), micro) for kind, part, micro in row)
        for rank, row in enumerate(rows)
    )
    return ScheduleFile(orders, route, chunks, micro_batches)


def _row(cells: Iterable[str], path: str) -> Iterable[Pass]:
    for cell in (cell.strip() for cell in cells):
        together = _TOGETHER.fullmatch(cell)
        for word in together[1].split(";") if together else [cell] if cell else []:
            found = _PASS.fullmatch(word.strip())
            if found is None:
                raise InputError(FIELD, path, f"{cell} is no pass of a rank", _ALLOWED)
            yield found[2], int(found[1]), int(found[3])


def _holders(rows: Sequence[Sequence[Pass]], path: str) -> dict[int, int]:
    """The rank of each part of the model."""
    holder: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for _, part, _ in row:
            if holder.setdefault(part, rank) != rank:
                problem = f"part {part} is on rank {holder[part]} and on rank {rank}"
                raise InputError(FIELD, path, problem, "each part on one rank")
    ordered = dict(sorted(holder.items()))
    for expected, part in enumerate(ordered):
        if part != expected:
            problem = f"nobody runs part {expected}"
            raise InputError(FIELD, path, problem, "parts from 0, without gaps")
    return ordered


def _check_neighbours(route: Sequence[tuple[int, int]], stages: int, path: str) -> None:
    """Parts that follow each other lie on one rank, on neighbours, or on the last and the first:
    transfers are priced between those."""
    for part, ((here, _), (there, _)) in enumerate(itertools.pairwise(route)):
        if abs(here - there) not in (0, 1, stages - 1):
            problem = f"part {part} is on rank {here} and the next on rank {there}"
            raise InputError(
                FIELD, path, problem, "one rank, neighbours, or the last and the first"
            )


def _check_complete(
    rows: Sequence[Sequence[Pass]], held: Sequence[Sequence[int]], micro_batches: int, path: str
) -> None:
    """Every part runs each micro-batch forward once, and back once, whole or in halves."""
    for row, parts in zip(rows, held, strict=True):
        if len(set(row)) != len(row):
            kind, part, micro = next(each for each in row if row.count(each) > 1)
            raise InputError(FIELD, path, f"{part}{kind}{micro} runs more than once", "once")
        runs = set(row)
        for part in parts:
            for micro in range(micro_batches):
                has = "".join(kind for kind in KINDS if (kind, part, micro) in runs)
                if has not in ("FB", "FIW"):
                    problem = f"part {part} runs micro-batch {micro} as {has or 'nothing'}"
                    raise InputError(FIELD, path, problem, "F and B, or F, I and W")


def _check_ends(rows: Sequence[Sequence[Pass]], holder: dict[int, int], path: str) -> None:
    """Play the orders: every pass must find what it waits for ended."""
    last = len(holder) - 1
    ended: set[tuple[str, int, int]] = set()
    at = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and _before(row[at[rank]], last) <= ended:
                kind, part, micro = row[at[rank]]
                # The part before waits for the gradient of an input, whole backward pass or half.
                ended.add(("B" if kind == "I" else kind, part, micro))
                at[rank] += 1
                moved = True
    for rank, row in enumerate(rows):
        if at[rank] < len(row):
            kind, part, micro = row[at[rank]]
            problem = f"{part}{kind}{micro} on rank {rank} waits for what never ends"
            raise InputError(FIELD, path, problem, "an order that runs to its end")


def _before(each: Pass, last: int) -> set[Pass]:
    """What a pass waits for besides those before it on its rank."""
    kind, part, micro = each
    if kind == "F":
        return {("F", part - 1, micro)} if part else set()
    if kind == "W":
        return {("B", part, micro)}
    return {("F", part, micro)} | ({("B", part + 1, micro)} if part < last else set())
