"""What a fabric that nobody measured leaves unknown of a step, the more the larger it is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainscout.simulators.predictor.question.job import Job

# Collectives on clusters left out of the fit err so much, typically, over a few nodes
# (docs/collectives.md), and runs on so many stand behind most residuals.
_LEFT_OUT_ERROR = 0.274
_NODES = 8
# Of what crosses a network that nobody validated, where half of it is counted: by 29 publications
# on such networks it takes 0.75 to 1.7 times as long between their quartiles, which fit best at
# NICs' rates divided by 1.5 and 3.4 (docs/accuracy/error-analysis.md).
_UNVALIDATED_ERROR = 0.5


def fabric_error(job: Job, step_time_s: float, breakdown_s: Mapping[str, float]) -> float:
    """Relative error of the step beyond that of small clusters, where no collectives of this one
    were measured: what nobody validated, and what grows with the doublings of its nodes (that of
    the one published cluster with a curve loses about as much of its bandwidth at each of six, so
    this rests on one source)."""
    nodes = job.world_size // job.cluster.domain
    if job.cluster.measured_between or nodes < 2 or job.cluster.num_nodes == 1:
        return 0.0
    growth = max(0.0, (math.log2(nodes) / math.log2(_NODES)) ** 2 - 1)
    of_all = math.hypot(
        _LEFT_OUT_ERROR * math.sqrt(growth),
        0.0 if job.cluster.network_validated else _UNVALIDATED_ERROR,
    )
    return share_between(job, step_time_s, breakdown_s) * of_all


def share_between(job: Job, step_time_s: float, breakdown_s: Mapping[str, float]) -> float:
    """Share of the step that is exposed communication of groups that leave a domain."""
    recipe, domain = job.recipe, job.cluster.domain
    leaves = {
        "tp_communication": recipe.tp,
        "cp_communication": recipe.tp * recipe.cp,
        "ep_communication": job.etp * recipe.ep,
        "dp_communication": job.world_size // recipe.pp,
        "pp_communication": job.world_size,
    }
    between_s = sum(breakdown_s.get(part, 0.0) for part, size in leaves.items() if size > domain)
    return between_s / step_time_s
