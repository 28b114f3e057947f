"""What a fabric that nobody measured leaves unknown of a step, the more the larger it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from trainscout.simulators.predictor.collectives.transport import left_out_error, transport
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.job import Job

# Runs on so many nodes stand behind most residuals.
_NODES = 8
# Of what crosses a network of which half is counted: publications on such networks take 0.75 to
# 1.7 times as long between their quartiles (docs/accuracy/error-analysis.md).
_UNVALIDATED_ERROR = 0.5
SLOW_QUARTILE = 1.7


def counted_share(cluster: Cluster) -> float:
    """The part of its NICs' rate that is counted between nodes where no switches are declared; 1
    also where somebody says what the network gives."""
    if cluster.network_validated or cluster.num_nodes == 1 or cluster.num_gpus <= cluster.domain:
        return 1.0
    return transport(cluster.fabric).unvalidated(cluster.nic_gbps)


def on_slow_network(job: Job) -> Job | None:
    """The job where a network counted in part is as slow as a quarter of such networks are; None
    where none is between its GPUs."""
    cluster = job.cluster
    if _is_known(job) or counted_share(cluster) == 1:
        return None
    return replace(job, cluster=replace(cluster, nic_gbps=cluster.nic_gbps / SLOW_QUARTILE))


def _is_known(job: Job) -> bool:
    cluster = job.cluster
    together = job.world_size < 2 * cluster.domain or cluster.num_nodes == 1
    return together or bool(cluster.measured_between)


def fabric_error(
    job: Job, step_time_s: float, breakdown_s: Mapping[str, float], slow_s: float = 0.0
) -> float:
    """Relative error of the step beyond that of small clusters, where no collectives of this one
    were measured: that of a network counted in part, and what grows with the doublings of its
    nodes (that of the one published cluster with a curve loses about as much of its bandwidth at
    each of six, so this rests on one source). ``slow_s``: the step ``on_slow_network``, which no
    longer hides all that it does."""
    if _is_known(job):
        return 0.0
    nodes = job.world_size // job.cluster.domain
    growth = max(0.0, (math.log2(nodes) / math.log2(_NODES)) ** 2 - 1)
    share = share_between(job, step_time_s, breakdown_s)
    unvalidated = _UNVALIDATED_ERROR * share if counted_share(job.cluster) < 1 else 0.0
    unvalidated = max(unvalidated, slow_s / step_time_s - 1)
    return math.hypot(left_out_error() * math.sqrt(growth) * share, unvalidated)


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
