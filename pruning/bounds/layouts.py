"""How the layers lie on stages and chunks, and which of those are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import LAYOUT
from trainscout.simulators.predictor.question.recipe import knobs_entering
from trainscout.simulators.predictor.replay.boundary import boundary_crosses_domain
from trainscout.simulators.predictor.workload.megatron import layers_by_stage

# The recipe fields that enter a layout.
LAYOUT_FIELDS = knobs_entering(LAYOUT)
# Stages whose memory and end of the step are bounded: more contents than these are rare.
MOST_STAGES = 4


@dataclass(frozen=True)
class ChunkKind:
    """What one chunk holds: so many of each of ``Model.layer_kinds``, the embedding, the head.

    Where recomputation tapers off, ``stage`` is the chunk's and else 0; ``most`` are the layers
    of the largest chunk where it does, and else the chunk's own.
    """

    layers: tuple[int, ...]
    first: bool
    last: bool
    stage: int
    most: int


@dataclass(frozen=True)
class Layout:
    """One split of the layers.

    ``kind_of[stage][chunk]`` indexes ``kinds``. ``stages`` are those that stand for the rest: the
    first of each content, which has most micro-batches in flight, and the last. ``crosses[s]``:
    stage ``s`` and the next lie in different NVLink domains.
    """

    pp: int
    vpp: int
    kinds: tuple[ChunkKind, ...]
    kind_of: tuple[tuple[int, ...], ...]
    stages: tuple[int, ...]
    crosses: tuple[bool, ...]

    def __hash__(self) -> int:
        return hash((self.pp, self.vpp, self.stages))

    @classmethod
    def of(cls, job: Job) -> Layout:
        recipe, model = job.recipe, job.model
        kinds: dict[ChunkKind, int] = {}
        kind_of = []
        begins, ends = zip(*((route[0], route[-1]) for route in job.routes), strict=True)
        for stage, ranges in enumerate(layers_by_stage(job)):
            row = []
            for chunk, (start, stop) in enumerate(ranges):
                kind = ChunkKind(
                    model.layers_of_each(start, stop),
                    (stage, chunk) in begins,
                    (stage, chunk) in ends,
                    stage if recipe.recompute_taper else 0,
                    job.largest_chunk if recipe.recompute_taper else stop - start,
                )
                row.append(kinds.setdefault(kind, len(kinds)))
            kind_of.append(tuple(row))
        last = recipe.pp - 1
        contents: dict[tuple[int, ...], int] = {}
        for stage, content in enumerate(kind_of):
            contents.setdefault(content, stage)
        firsts = [stage for stage in contents.values() if stage != last]
        return cls(
            recipe.pp,
            recipe.vpp,
            tuple(kinds),
            tuple(kind_of),
            (*firsts[: MOST_STAGES - 1], last),
            tuple(boundary_crosses_domain(job)),
        )

    def layers(self, stage: int) -> int:
        """Transformer layers of a stage."""
        return sum(sum(self.kinds[kind].layers) for kind in self.kind_of[stage])

    def spread_stages(self, most: int) -> Sequence[int]:
        """``stages`` and others evenly among the rest, at most ``most`` and those."""
        even = np.linspace(0, self.pp - 1, num=min(most, self.pp)).round().astype(int)
        return sorted({*self.stages, *even.tolist(), min(1, self.pp - 1), max(0, self.pp - 2)})
