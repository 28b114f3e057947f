"""Without pipelining, more and smaller micro-batches need not be tried (MAYA, Table 5)."""

from __future__ import annotations

from dataclasses import replace

from trainscout.pruning.tactic import History, Verdict
from trainscout.simulators.predictor.question.job import Job

# How much faster per sample a smaller micro-batch may yet be, by tile and wave quantisation
# and by a collective that changes its protocol. Chosen wide, and held by exhaustive search.
QUANTISATION_GAIN = 0.10


class MicroBatches:
    """Skip a smaller micro-batch, at pp = 1, whose larger twin fits and is far from the best.

    With no pipeline to fill, splitting the same samples into more micro-batches only makes
    kernels and messages smaller and launches more numerous, and leaves less backward time to
    hide the gradient reduction behind. Quantisation can break this by a few percent, where
    MAYA would copy the runtime all the same; here the larger twin must be worse than the best
    recipes by more than ``QUANTISATION_GAIN``. Where one micro-batch's exchange of tokens runs
    beside another's kernels, more of them leave less of it exposed, and all are simulated.
    """

    name = "micro_batches"

    def check(self, job: Job, history: History) -> Verdict | None:
        recipe = job.recipe
        if recipe.pp != 1 or recipe.overlap_moe_expert_parallel_comm:
            return None
        per_replica = job.training.global_batch_size // job.dp
        for larger in range(2 * recipe.micro_batch, per_replica + 1, recipe.micro_batch):
            if per_replica % larger:
                continue
            known = history.find(replace(recipe, micro_batch=larger))
            if known is None or known.time_like is None or not known.fits:
                continue
            if history.out_of_reach(known.time_like * (1.0 - QUANTISATION_GAIN)):
                reason = (
                    f"no pipeline to fill, and micro_batch={larger} fits and is more than "
                    f"{QUANTISATION_GAIN:.0%} behind the best"
                )
                return Verdict(self.name, True, reason, known)
        return None
