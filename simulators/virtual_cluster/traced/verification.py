"""What a recipe's verification found: both sources' figures for the same steps and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainscout.simulators.predictor.question.recipe import Recipe


@dataclass(frozen=True)
class RankFigures:
    """One rank's step by one source.

    Bytes are of the whole run's peaks (allocated: live tensors; reserved: the allocator's
    segments), of all parameters, and communicated in a step by communicator as NCCL counts them;
    ``gemm_flops`` of one step.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    parameter_bytes: int
    gemm_flops: int
    communicated_bytes: Mapping[str, int]


@dataclass(frozen=True)
class RankCheck:
    """One traced rank beside what the built-in source says of its stage.

    ``differences``: operations that only one of them has, in words.
    """

    rank: int
    stage: int
    builtin: RankFigures
    traced: RankFigures
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """A recipe's step by both sources, for the same number of micro-batches.

    Of the recipe's ``step_micro_batches``, ``micro_batches`` were traced and predicted. The parts
    (``Prediction.breakdown_s``) are of each source's critical stage and sum to its step.
    ``problem`` says why there are no figures: what the traced run raised.
    """

    recipe: Recipe
    micro_batches: int
    step_micro_batches: int
    builtin_step_s: float | None = None
    traced_step_s: float | None = None
    builtin_parts_s: Mapping[str, float] = field(default_factory=dict)
    traced_parts_s: Mapping[str, float] = field(default_factory=dict)
    ranks: tuple[RankCheck, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary (units as in the field names)."""
        return asdict(self)
