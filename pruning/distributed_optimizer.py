"""A recipe that fits without the distributed optimizer need not be tried with it."""

from __future__ import annotations

import math
from dataclasses import replace

from trainscout.pruning.tactic import History, Verdict
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.shard import Shard

# What sharding the optimizer can shorten, as parts of ``Prediction.breakdown_s``; a part
# that takes no time may be left out there, but every step has an optimizer.
_OPTIMIZER = "optimizer"
_TRAFFIC = "dp_communication"


class DistributedOptimizer:
    """Skip ZeRO-1 where plain data parallelism fits and sharding cannot pay (MAYA, Table 5): it
    shortens nothing but the optimizer, the gradients' norm and exposed data-parallel traffic.

    MAYA calls sharding a pure cost and copies the twin's runtime. That is not quite so: each
    rank updates only 1/dp of the parameters, and gathering bf16 parameters moves fewer bytes
    than the second half of an fp32 all-reduce. Both gains are bounded by what the twin spends
    on them, so this rule fires only where even a free optimizer and free data-parallel
    communication, on the stage with most parameters, would leave the recipe outside the best
    ones. With ``overlap_grad_reduce`` the traffic also slows the kernels beside it, which that
    bound does not see, so overlapped recipes are simulated. So are PyTorch's, whose DDP copies
    gradients into buckets of its own, DeepSpeed's, whose sharding needs more memory, and those
    whose passes differ, which sharding spares quantising weights or casting fp32 ones.
    """

    name = "distributed_optimizer"

    def check(self, job: Job, history: History) -> Verdict | None:
        recipe, framework = job.recipe, job.framework
        if recipe.zero_stage != 1 or recipe.overlap_grad_reduce:
            return None
        if framework.torch_wrappers or framework.flattens_gradients or job.keeps_quantised:
            return None
        plain = replace(recipe, zero_stage=0, overlap_param_gather=False)
        known = history.find(plain)
        if known is None or known.prediction is None or known.time_like is None or not known.fits:
            return None
        if Shard.of(replace(job, recipe=plain)) != Shard.of(job):
            return None
        shortened_s = _most_shortened_s(job, known.prediction)
        if shortened_s is None:
            return None
        at_best = 1.0 - shortened_s / known.prediction.step_time_s
        if not history.out_of_reach(known.time_like * at_best):
            return None
        reason = (
            "fits without the distributed optimizer, and sharding could save at most "
            f"{shortened_s:.3g} s of {known.prediction.step_time_s:.4g} s"
        )
        return Verdict(self.name, True, reason, known)


def _most_shortened_s(job: Job, prediction: Prediction) -> float | None:
    """Seconds of optimizer, norm and exposed gradient traffic on the stage where they are longest.

    The breakdown is the critical stage's; all grow with a stage's trained parameters, at most in
    proportion, those of experts for themselves, whose groups are others. The norm, part of what
    computes, reads gradients once, which the optimizer reads at least twice and writes, so that it
    and what stragglers add take no longer than that. None when the prediction does not say.
    """
    parts = prediction.breakdown_s
    if _OPTIMIZER not in parts:
        return None
    stages = [stage.parameters for stage in build_workload(job).stages]
    critical = stages[prediction.critical_stage]
    times = 1.0
    for stage in stages:
        for most, own in ((stage.dense, critical.dense), (stage.expert, critical.expert)):
            if most > own:
                times = max(times, most / own if own else math.inf)
    if math.isinf(times):
        return None
    return (2 * parts[_OPTIMIZER] + parts.get(_TRAFFIC, 0.0)) * times
