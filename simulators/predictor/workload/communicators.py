"""Which ranks talk to each other, and how their groups lie on the nodes.

Megatron's default rank order, innermost first: tp, cp, dp, pp; for expert layers etp, ep,
expert-dp, pp. With ``use_tp_pp_dp_mapping`` pp comes before dp. Ranks fill NVLink domains in
order, so a group with a given stride has a fixed number of members per domain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from trainscout.simulators.predictor.question.job import Job

from .ir import Communicator

# A group's members as (how many, how far apart) by dimension, innermost first: it holds all sums
# of one multiple of each.
Span = tuple[tuple[int, int], ...]
# The dimension that asks for switches that sum: they hold the trees of few groups.
_COLLNET = "dp"


def spans(job: Job) -> dict[str, Span]:
    """How the ranks of each dimension's groups lie, under the names of ``communicators``."""
    recipe = job.recipe
    tp, cp, pp, ep, etp = recipe.tp, recipe.cp, recipe.pp, recipe.ep, job.etp
    sharing, experts = tp * cp, etp * ep
    # Ranks of one stage that lie together, and how far apart what shares neither are.
    stage, between = (sharing, pp) if recipe.use_tp_pp_dp_mapping else (sharing * job.dp, 1)
    lie: dict[str, Span] = {
        "tp": ((tp, 1),),
        "cp": ((cp, tp),),
        "dp": ((cp, tp), (job.dp, sharing * between)),
        "pp": ((pp, stage),),
        "model": ((tp, 1), (pp, stage)),
        "embedding": ((min(pp, 2), stage * max(1, pp - 1)),),
    }
    # A teacher may have experts where the trained model has none.
    has_experts = any(each and each.model.moe for each in (job, job.reference))
    if has_experts:
        lie["etp"] = ((etp, 1),)
        lie["ep"] = ((ep, etp),)
        lie["etp_ep"] = ((experts, 1),)
        lie["expert_dp"] = ((job.expert_dp, experts * between),)
    if job.shard_copies > 1:
        copies, apart = job.shard_copies, sharing * between
        lie["dp_shard"] = ((cp, tp), (job.dp // copies, apart))
        lie["dp_copies"] = ((copies, job.dp // copies * apart),)
        if has_experts:
            shards = job.expert_dp // copies
            lie["expert_dp_shard"] = ((shards, experts * between),)
            lie["expert_dp_copies"] = ((copies, shards * experts * between),)
    return lie


def communicators(job: Job) -> dict[str, Communicator]:
    """Every communicator of the job by dimension.

    ``dp`` spans data and context parallelism (gradients are summed over both); ``expert_dp``
    the replicas of one expert shard; where shards are not spread over all of them, ``..._shard``
    is what they are spread over and ``..._copies`` the ranks that hold the same; ``etp_ep`` all
    ranks that share a layer's experts; ``model`` the ranks that hold one replica (gradient norm);
    ``embedding`` the first and last stage, which may share an embedding; ``pp`` neighbouring
    stages.
    """
    return dict(_groups(tuple(spans(job).items()), *_sizes(job)))


@functools.lru_cache(maxsize=4096)
def _groups(
    spans: tuple[tuple[str, Span], ...], domain: int, node: int, ranks: int
) -> Mapping[str, Communicator]:
    lie = dict(spans)
    # The two ends of a pipeline lie further apart than they repeat.
    ((stages, apart),) = lie["pp"]
    within = {name: stages * apart if name == "embedding" else ranks for name in lie}
    return {name: _placed(name, span, domain, node, within[name]) for name, span in spans}


def dimension(name: str) -> str:
    """The dimension whose groups a communicator's are: those that share out what data-parallel
    ranks hold, and those that hold copies of one share, are ``dp``'s or ``expert_dp``'s, the ends
    of a pipeline ``pp``'s."""
    if name == "embedding":
        return "pp"
    return name.removesuffix("_shard").removesuffix("_copies")


def paired(job: Job) -> dict[str, int]:
    """With how many others a rank exchanges one by one, by the communicator it does so in."""
    recipe, found = job.recipe, dict[str, int]()
    if recipe.ep > 1 and job.dispatcher == "alltoall":
        found["ep"] = recipe.ep - 1
    if recipe.cp > 1 and recipe.cp_comm_type != "all_gather":
        found["cp"] = recipe.cp - 1 if recipe.cp_comm_type == "a2a" else 1
    if recipe.pp > 1:
        found["pp"] = min(2, recipe.pp - 1)
    return found


def place(name: str, size: int, stride: int, job: Job) -> Communicator:
    """The communicator of ``size`` ranks that lie ``stride`` apart."""
    return place_span(name, ((size, stride),), job)


def place_span(name: str, span: Span, job: Job) -> Communicator:
    """The communicator of ranks that lie as ``span`` says."""
    return _placed(name, span, *_sizes(job))


def _sizes(job: Job) -> tuple[int, int, int]:
    """GPUs of an NVLink domain, of a node (or the domain that spans several) and of the job."""
    domain, ranks = job.cluster.domain, job.world_size
    return min(domain, ranks), min(max(domain, job.cluster.gpus_per_node), ranks), ranks


@functools.lru_cache(maxsize=65536)
def _placed(name: str, span: Span, domain: int, node: int, most: int) -> Communicator:
    size = math.prod(count for count, _ in span)
    per_domain = _together(span, domain, most)
    per_node = per_domain if node == domain else _together(span, node, most)
    domains, nodes = size // per_domain, size // per_node
    siblings = max(1, domain // per_domain) if domains > 1 else 1
    last = sum((count - 1) * stride for count, stride in span)
    reach = max(nodes, 1 + last // node)
    collnet = name == _COLLNET
    return Communicator(name, size, per_domain, domains, siblings, reach, nodes, collnet)


def _together(span: Span, domain: int, most: int) -> int:
    """How many ranks of a group share a domain."""
    parts = _joined(span)
    each = (_in_a_domain(count, min(count * apart, most), apart, domain) for count, apart in parts)
    return math.prod(each)


def _joined(span: Span) -> list[tuple[int, int]]:
    """The span with dimensions that continue each other as one."""
    joined = [span[0]]
    for count, stride in span[1:]:
        before, step = joined[-1]
        if stride == before * step:
            joined[-1] = (before * count, step)
        else:
            joined.append((count, stride))
    return joined


def _in_a_domain(size: int, extent: int, stride: int, domain: int) -> int:
    """How many of ``size`` ranks that lie ``stride`` apart, on ``extent`` ranks in a row, share
    an NVLink domain."""
    if extent <= domain:
        return size
    per_domain = max(1, domain // stride)
    # A group that straddles domains unevenly is at least spread over whole ones.
    while size % per_domain:
        per_domain -= 1
    return per_domain
