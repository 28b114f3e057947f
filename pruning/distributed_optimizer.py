"""A recipe that fits without the distributed optimizer need not be tried with it."""

from __future__ import annotations

from dataclasses import replace

from trainscout.pruning.tactic import History, Verdict
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job

# What sharding the optimizer can shorten, as parts of ``Prediction.breakdown_s``; a part
# that takes no time may be left out there, but every step has an optimizer.
_OPTIMIZER = "optimizer"
_TRAFFIC = "dp_communication"


class DistributedOptimizer:
    """Skip ZeRO-1 where plain data parallelism fits and sharding cannot pay (MAYA, Table 5): it
    shortens nothing but the optimizer and exposed data-parallel traffic.

    MAYA calls sharding a pure cost and copies the twin's runtime. That is not quite so: each
    rank updates only 1/dp of the parameters, and gathering bf16 parameters moves fewer bytes
    than the second half of an fp32 all-reduce. Both gains are bounded by what the twin spends
    on them, so this rule fires only where even a free optimizer and free data-parallel
    communication, on the stage with most parameters, would leave the recipe outside the best
    ones. With ``overlap_grad_reduce`` the traffic also slows the kernels beside it, which that
    bound does not see, so overlapped recipes are simulated. So are PyTorch's, whose DDP copies
    gradients into buckets of its own, DeepSpeed's, whose sharding needs more memory, and those
    whose passes it spares quantising weights that it keeps in 8 bits.
    """

    name = "distributed_optimizer"

    def check(self, job: Job, history: History) -> Verdict | None:
        recipe, framework = job.recipe, job.framework
        if recipe.zero_stage != 1 or recipe.overlap_grad_reduce:
            return None
        if framework.torch_wrappers or framework.flattens_gradients or job.keeps_quantised:
            return None
        known = history.find(replace(recipe, zero_stage=0, overlap_param_gather=False))
        if known is None or known.prediction is None or known.time_like is None or not known.fits:
            return None
        shortened_s = _most_shortened_s(known.prediction)
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


def _most_shortened_s(prediction: Prediction) -> float | None:
    """Seconds of optimizer and exposed gradient traffic on the stage where they are longest.

    The breakdown is the critical stage's; both parts grow with a stage's parameters. None when
    the prediction does not say.
    """
    parts = prediction.breakdown_s
    parameters = {
        stage.stage: stage.kind.get("parameters", 0) for stage in prediction.memory.per_stage
    }
    critical = parameters.get(prediction.critical_stage, 0)
    if _OPTIMIZER not in parts or not critical:
        return None
    largest = max(parameters.values()) / critical
    return (parts[_OPTIMIZER] + parts.get(_TRAFFIC, 0.0)) * largest
