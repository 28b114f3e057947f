"""Out of memory with sequence parallelism implies the same without it (MAYA, Table 5)."""

from __future__ import annotations

from dataclasses import replace

from trainscout.pruning.history import History
from trainscout.pruning.tactic import Verdict
from trainscout.simulators.predictor.question.job import Job


class SequenceParallelOutOfMemory:
    """Skip a recipe without sequence parallelism whose twin with it already did not fit.

    Sequence parallelism only shards activations that the twin replicates over the
    tensor-parallel group; parameters and optimizer state are the same. The gathered buffer it
    needs for a GEMM is a tensor that the twin keeps in full anyway.
    """

    name = "sequence_parallel_oom"
    premise = "sequence parallelism never needs more memory"

    def check(self, job: Job, history: History) -> Verdict | None:
        recipe = job.recipe
        if recipe.sp or recipe.tp == 1:
            return None
        known = history.find(replace(recipe, sp=True))
        if known is None or known.fits:
            return None
        reason = "out of memory even with sequence parallelism, which needs no more memory"
        return Verdict(self.name, False, reason, known)
