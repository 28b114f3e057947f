"""A recipe that fits without the distributed optimizer need not be tried with it."""

from __future__ import annotations

from dataclasses import replace

from pruning.history import History
from pruning.tactic import Verdict
from simulators.job import Job

# What sharding the optimizer can shorten, as parts of ``Prediction.breakdown_s``.
SHARDED_PARTS = ("optimizer", "exposed_dp_communication")


class DistributedOptimizer:
    """Skip ZeRO-1 where plain data parallelism fits and sharding cannot pay (MAYA, Table 5).

    MAYA calls sharding a pure cost and copies the twin's runtime. That is not quite so: each
    rank updates only 1/dp of the parameters, and gathering bf16 parameters moves fewer bytes
    than the second half of an fp32 all-reduce. Both gains are bounded by what the twin spends
    on them, so this rule fires only where even a free optimizer and free data-parallel
    communication would leave the recipe outside the best ones. With ``overlap_grad_reduce``
    the traffic also slows the kernels beside it, which that bound does not see, so overlapped
    recipes are simulated.
    """

    name = "distributed_optimizer"
    premise = "sharding shortens nothing but the optimizer and exposed data-parallel traffic"

    def check(self, job: Job, history: History) -> Verdict | None:
        recipe = job.recipe
        if recipe.zero_stage != 1 or recipe.overlap_grad_reduce:
            return None
        known = history.find(replace(recipe, zero_stage=0, overlap_param_gather=False))
        if known is None or known.prediction is None or known.time_like is None or not known.fits:
            return None
        parts = known.prediction.breakdown_s
        if any(part not in parts for part in SHARDED_PARTS):
            return None
        shortened_s = sum(parts[part] for part in SHARDED_PARTS)
        at_best = 1.0 - shortened_s / known.prediction.step_time_s
        if not history.out_of_reach(known.time_like * at_best):
            return None
        reason = (
            "fits without the distributed optimizer, and sharding could save at most "
            f"{shortened_s:.3g} s of {known.prediction.step_time_s:.4g} s"
        )
        return Verdict(self.name, True, reason, known)
