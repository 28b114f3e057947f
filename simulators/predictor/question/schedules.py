"""What is particular to each pipeline schedule, and how the model lies on the chunks of stages."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from .errors import InputError
from .schedule_file import is_file, read_schedule

Place = tuple[int, int]
"""A stage and one of its chunks."""


@dataclass(frozen=True)
class Schedule:
    """One order of a pipeline's passes.

    ``splits_backward``: the gradient of a pass's input is a pass of its own, and that of its
    weights another. ``v_shaped``: the model goes down the stages' first chunks and back up their
    second.
    ``both_ways``: every stage holds two parts of the model, one for micro-batches that come from
    the first stage and one for those that come from the last, so that there are two copies of it.
    ``unsynchronised``: stages go on to the next step without waiting for each other.
    """

    splits_backward: bool = False
    v_shaped: bool = False
    both_ways: bool = False
    unsynchronised: bool = False

    @property
    def ends_meet(self) -> bool:
        """Whether the stage with the model's beginning holds its end too."""
        return self.v_shaped or self.both_ways


SCHEDULES = {
    "1f1b": Schedule(),
    "gpipe": Schedule(),
    "zb-h1": Schedule(splits_backward=True),
    "zb-h2": Schedule(splits_backward=True, unsynchronised=True),
    "zb-v": Schedule(splits_backward=True, v_shaped=True),
    "v-half": Schedule(splits_backward=True, v_shaped=True),
    "v-min": Schedule(splits_backward=True, v_shaped=True),
    "dualpipe": Schedule(splits_backward=True, both_ways=True),
    "dualpipe-v": Schedule(splits_backward=True, v_shaped=True),
}


OWN = "csv"
"""What frameworks call schedules of one's own, which are files (``schedule_file``)."""


def schedule_kind(name: str) -> Schedule:
    """What is particular to a schedule by name, or to that of a file."""
    return _written(name) if is_file(name) else SCHEDULES[name]


@functools.lru_cache(maxsize=16)
def _written(name: str) -> Schedule:
    file = read_schedule(name)
    (first, _), (last, _) = file.route[0], file.route[-1]
    # What is V-shaped ends where it begins; rules of the V's two chunks are not for files.
    return Schedule(splits_backward=file.splits_backward, v_shaped=first == last)


@functools.lru_cache(maxsize=512)
def routes(schedule: str, stages: int, chunks: int) -> tuple[tuple[Place, ...], ...]:
    """The places that a micro-batch visits, in order: of each half of them where they go both
    ways, else of all.

    Raises:
        InputError: for a file of another pipeline.
    """
    if is_file(schedule):
        file = read_schedule(schedule)
        for field, value, has in (("pp", stages, file.stages), ("vpp", chunks, file.chunks)):
            if value != has:
                what = "ranks" if field == "pp" else "parts of the model a rank"
                problem = f"schedule={schedule} has {has} {what}"
                raise InputError(field, value, problem, str(has))
        return (file.route,)
    kind = SCHEDULES[schedule]
    down, up = range(stages), range(stages - 1, -1, -1)
    if kind.both_ways:
        return tuple((stage, 0) for stage in down), tuple((stage, 1) for stage in up)
    if kind.v_shaped:
        return ((*((stage, 0) for stage in down), *((stage, 1) for stage in up)),)
    return (tuple((stage, chunk) for chunk in range(chunks) for stage in down),)


@functools.lru_cache(maxsize=512)
def receivers(
    schedule: str, stages: int, chunks: int
) -> tuple[dict[Place, int], dict[Place, int]]:
    """To which other stage a place sends its output, and to which the gradient of its input."""
    forward: dict[Place, int] = {}
    backward: dict[Place, int] = {}
    for route in routes(schedule, stages, chunks):
        for here, there in itertools.pairwise(route):
            if here[0] != there[0]:
                forward[here], backward[there] = there[0], here[0]
    return forward, backward


def crossed(one: int, other: int) -> int:
    """Which boundary lies between two stages: that behind the first of neighbours, and the last
    one where the model goes on from the last stage to the first."""
    return min(one, other) if abs(one - other) == 1 else max(one, other)
