"""The answer: what one training step takes, costs and occupies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Evidence(StrEnum):
    """Where a price comes from, best first."""

    MEASURED = "measured"
    FITTED = "fitted"
    ESTIMATED = "estimated"


@dataclass(frozen=True)
class StageMemory:
    """Memory of one pipeline stage's worst rank, in bytes.

    ``kind`` maps parameters, gradients, optimizer, activations, temporary,
    communication_buffers, context to bytes; allocator figures exclude the latter two.
    """

    stage: int
    kind: dict[str, int]
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True)
class Memory:
    """Memory of the job; the peaks are those of the worst stage, in bytes.

    ``capacity_bytes`` is what a recipe may use: GPU memory less the declared reserve.
    ``headroom_bytes`` is negative by how much the worst stage misses. ``fit_probability`` is that
    of the worst stage staying within the capacity, as predictions of memory err, and ``band`` what
    it comes to (``memory.bands``): ``fits``, ``tight`` or ``no``. ``host_bytes`` are what a GPU of
    the worst stage keeps in its host's memory, of the ``host_capacity_bytes`` that are its share.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int
    headroom_bytes: int
    worst_stage: int
    per_stage: tuple[StageMemory, ...]
    fit_probability: float
    band: str
    host_bytes: int = 0
    host_capacity_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """What the worst stage takes of its GPU: reserved, NCCL's buffers, the CUDA context."""
        return self.capacity_bytes - self.headroom_bytes

    @property
    def missing_bytes(self) -> int:
        """What the worst stage lacks, of its GPU's memory or its share of the host's; what is left
        counts as negative."""
        return max(-self.headroom_bytes, self.host_bytes - self.host_capacity_bytes)


@dataclass(frozen=True)
class Prediction:
    """One step of one job.

    ``mfu`` counts model FLOPs with attention over the full square, ``mfu_causal`` with the half
    that causal attention needs, ``hfu`` also what recomputation repeats (docs/concepts.md); all
    are fractions of the GPU's dense peak at the job's precision. ``breakdown_s`` maps the
    name of each part of the critical path to seconds and sums to ``step_time_s``.
    ``evidence_share`` maps measured/fitted/estimated to the share of kernel and communication
    time so priced; ``estimated_operations`` lists what was only estimated. ``fits`` says that
    ``memory.band`` is ``fits``.
    ``interval_s`` is the error bar (``uncertainty``), None from a simulator that has
    none. ``assumptions`` says in words what is taken for granted beyond prices.
    """

    step_time_s: float
    mfu: float
    mfu_causal: float
    hfu: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    cost_per_step_usd: float
    cost_per_billion_tokens_usd: float
    cost_of_run_usd: float
    fits: bool
    memory: Memory
    breakdown_s: dict[str, float]
    critical_stage: int
    evidence_share: dict[str, float]
    estimated_operations: tuple[str, ...]
    interval_s: tuple[float, float] | None = None
    assumptions: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary (units as in the field names)."""
        return asdict(self)

    def gaps_s(self, base: Prediction) -> dict[str, float]:
        """By part of the step, how many seconds more it takes than that of ``base``."""
        ours, theirs = self.breakdown_s, base.breakdown_s
        return {part: ours.get(part, 0.0) - theirs.get(part, 0.0) for part in {**theirs, **ours}}
