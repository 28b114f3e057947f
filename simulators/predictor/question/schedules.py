"""What is particular to each pipeline schedule, and how the model lies on the chunks of stages."""

from __future__ import annotations

import functools
from dataclasses import dataclass

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


@functools.lru_cache(maxsize=512)
def routes(schedule: str, stages: int, chunks: int) -> tuple[tuple[Place, ...], ...]:
    """The places that a micro-batch visits, in order: of each half of them where they go both
    ways, else of all."""
    kind = SCHEDULES[schedule]
    down, up = range(stages), range(stages - 1, -1, -1)
    if kind.both_ways:
        return tuple((stage, 0) for stage in down), tuple((stage, 1) for stage in up)
    if kind.v_shaped:
        return ((*((stage, 0) for stage in down), *((stage, 1) for stage in up)),)
    return (tuple((stage, chunk) for chunk in range(chunks) for stage in down),)


def crossed(one: int, other: int) -> int:
    """Which boundary lies between two stages: that behind the first of neighbours, and the last
    one where the model goes on from the last stage to the first."""
    return min(one, other) if abs(one - other) == 1 else max(one, other)
