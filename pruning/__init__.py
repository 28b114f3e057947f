"""What need not be simulated: MAYA's four tactics (Table 5) and three more orders of memory.

A tactic settles a recipe from recipes already settled. None can hide one of the best recipes
of a simulator that keeps the tactic's ``premise``.
"""

from __future__ import annotations

from collections.abc import Iterable

from pruning.distributed_optimizer import DistributedOptimizer
from pruning.history import History, Known
from pruning.memory_order import MEMORY_ORDER
from pruning.micro_batches import MicroBatches
from pruning.order import settles_others_rank
from pruning.recompute import RecomputeOutOfMemory
from pruning.sequence_parallel import SequenceParallelOutOfMemory
from pruning.tactic import Tactic, Verdict
from simulators.errors import require_choice
from simulators.job import Job

__all__ = [
    "TACTICS",
    "History",
    "Known",
    "Tactic",
    "Verdict",
    "select_tactics",
    "settle",
    "settles_others_rank",
]

TACTICS: dict[str, Tactic] = {
    tactic.name: tactic
    for tactic in (
        RecomputeOutOfMemory(),
        SequenceParallelOutOfMemory(),
        DistributedOptimizer(),
        MicroBatches(),
        *MEMORY_ORDER,
    )
}


def select_tactics(names: Iterable[str]) -> tuple[Tactic, ...]:
    """The tactics called ``names``.

    Raises:
        InputError: for an unknown name, with the nearest.
    """
    names = list(names)
    for name in names:
        require_choice("search.pruning", name, TACTICS)
    return tuple(TACTICS[name] for name in dict.fromkeys(names))


def settle(job: Job, history: History, tactics: Iterable[Tactic]) -> Verdict | None:
    """The first verdict on a valid job, or None when it has to be simulated."""
    for tactic in tactics:
        verdict = tactic.check(job, history)
        if verdict is not None:
            return verdict
    return None
