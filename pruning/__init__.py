"""What need not be simulated: MAYA's four tactics (Table 5) and three more orders of memory.

A tactic resolves a recipe from recipes already resolved. None can hide one of the best recipes
of a simulator that keeps what the tactic's docstring says.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainscout.pruning.distributed_optimizer import DistributedOptimizer
from trainscout.pruning.memory_order import MEMORY_ORDER
from trainscout.pruning.micro_batches import MicroBatches
from trainscout.pruning.tactic import History, Tactic, Verdict
from trainscout.simulators.predictor.question.errors import require_choice
from trainscout.simulators.predictor.question.job import Job

TACTICS: dict[str, Tactic] = {
    tactic.name: tactic for tactic in (*MEMORY_ORDER, DistributedOptimizer(), MicroBatches())
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


def apply_tactics(job: Job, history: History, tactics: Iterable[Tactic]) -> Verdict | None:
    """The first verdict on a valid job, or None when it has to be simulated."""
    for tactic in tactics:
        verdict = tactic.check(job, history)
        if verdict is not None:
            return verdict
    return None
