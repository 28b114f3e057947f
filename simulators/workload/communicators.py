"""Which ranks talk to each other, and how their groups lie on the nodes.

Megatron's default rank order, innermost first: tp, cp, dp, pp; for expert layers etp, ep,
expert-dp, pp. Ranks fill NVLink domains in order, so a group with a given stride has a fixed
number of members per domain.
"""

from __future__ import annotations

from simulators.job import Job
from simulators.workload.ir import Communicator

# A group's members as (how many, how far apart) by dimension, innermost first: it holds all sums
# of one multiple of each.
Span = tuple[tuple[int, int], ...]


def place(name: str, size: int, stride: int, job: Job) -> Communicator:
    """The communicator of ``size`` ranks that lie ``stride`` apart."""
    domain = min(job.cluster.domain, job.world_size)
    # The two ends of a pipeline lie further apart than they repeat.
    span = min(size * stride, job.world_size)
    if span <= domain:
        per_domain = size
    else:
        per_domain = max(1, domain // stride)
        # A group that straddles domains unevenly is at least spread over whole ones.
        while size % per_domain:
            per_domain -= 1
    nodes = size // per_domain
    siblings = max(1, domain // per_domain) if nodes > 1 else 1
    return Communicator(name, size, per_domain, nodes, siblings)


def spans(job: Job) -> dict[str, Span]:
    """How the ranks of each dimension's groups lie, under the names of ``communicators``."""
    recipe = job.recipe
    tp, cp, pp, ep, etp = recipe.tp, recipe.cp, recipe.pp, recipe.ep, job.etp
    replica = tp * cp * job.dp
    lie: dict[str, Span] = {
        "tp": ((tp, 1),),
        "cp": ((cp, tp),),
        "dp": ((cp * job.dp, tp),),
        "pp": ((pp, replica),),
    }
    if job.model.moe is not None:
        lie["etp"] = ((etp, 1),)
        lie["ep"] = ((ep, etp),)
        lie["etp_ep"] = ((etp * ep, 1),)
        lie["expert_dp"] = ((job.expert_dp, etp * ep),)
    return lie


def communicators(job: Job) -> dict[str, Communicator]:
    """Every communicator of the job by dimension.

    ``dp`` spans data and context parallelism (gradients are summed over both); ``expert_dp``
    the replicas of one expert shard; ``etp_ep`` all ranks that share a layer's experts;
    ``model`` the ranks that hold one replica (gradient norm); ``embedding`` the first and
    last stage, which share tied embeddings; ``pp`` neighbouring stages.
    """
    recipe = job.recipe
    tp, cp, pp, ep, etp = recipe.tp, recipe.cp, recipe.pp, recipe.ep, job.etp
    replica = tp * cp * job.dp
    groups = {
        "tp": place("tp", tp, 1, job),
        "cp": place("cp", cp, tp, job),
        "dp": place("dp", cp * job.dp, tp, job),
        "pp": place("pp", pp, replica, job),
        "model": _replica_group(tp, pp, replica, job),
        "embedding": place("embedding", min(pp, 2), replica * max(1, pp - 1), job),
    }
    if job.model.moe is not None:
        groups["etp"] = place("etp", etp, 1, job)
        groups["ep"] = place("ep", ep, etp, job)
        groups["etp_ep"] = place("etp_ep", etp * ep, 1, job)
        groups["expert_dp"] = place("expert_dp", job.expert_dp, etp * ep, job)
    return groups


def _replica_group(tp: int, pp: int, replica: int, job: Job) -> Communicator:
    """The tp x pp ranks that hold one copy of the model."""
    within = place("tp", tp, 1, job)
    across = place("pp", pp, replica, job)
    per_domain = within.ranks_per_node * across.ranks_per_node
    nodes = within.nodes * across.nodes
    domain = min(job.cluster.domain, job.world_size)
    siblings = max(1, domain // per_domain) if nodes > 1 else 1
    return Communicator("model", tp * pp, per_domain, nodes, siblings)
