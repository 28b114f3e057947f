"""Process groups as the network sees them, and as a step's breakdown names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.workload.ir import Communicator

# Words of a group's description, the first that occurs decides. Frameworks spell them out
# (Megatron-Core: EXPERT_DATA_PARALLEL_GROUP) or name dimensions of a mesh (TorchTitan: dp_shard).
_PARTS = (
    (("expert_data", "edp", "expert_dp"), "dp_communication"),
    (("expert", "ep", "etp", "moe"), "ep_communication"),
    (("data", "dp", "fsdp", "hsdp", "shard", "replicate"), "dp_communication"),
    (("context", "cp", "ulysses", "ring"), "cp_communication"),
    (("tensor", "tp", "sequence", "sp"), "tp_communication"),
    (("pipeline", "pp"), "pp_communication"),
)
# What serves none of them: gradient norms over a model replica, tied embeddings, the whole world.
_OTHER_PART = "dp_communication"
# What PyTorch calls a group that is made without ``group_desc``.
UNNAMED = "undefined"


def part_of(description: str) -> str:
    """The part of the step that a group's communication is shown under."""
    text = description.lower().replace("-", "_")
    words = set(text.split("_")) | set(text.split())
    for names, part in _PARTS:
        if any(name in words or ("_" in name and name in text) for name in names):
            return part
    return _OTHER_PART


def communicator_of(
    name: str, ranks: Sequence[int], cluster: Cluster, *, collnet: bool = False
) -> Communicator:
    """How a group of global ranks lies on the cluster, whose NVLink domains they fill in order.

    Groups of the same kind are taken to fill every domain: as many share its NICs at a time.
    """
    domain, node = cluster.domain, max(cluster.domain, cluster.gpus_per_node)
    per_domain, per_node = _together(ranks, domain), _together(ranks, node)
    size, domains, nodes = len(ranks), len(ranks) // per_domain, len(ranks) // per_node
    siblings = max(1, domain // per_domain) if domains > 1 else 1
    reach = max(ranks) // node - min(ranks) // node + 1
    return Communicator(name, size, per_domain, domains, siblings, reach, nodes, collnet)


def _together(ranks: Sequence[int], domain: int) -> int:
    """How many of them share a domain."""
    most = max(Counter(rank // domain for rank in ranks).values())
    # Where members lie unevenly, they are at least spread over whole domains.
    while len(ranks) % most:
        most -= 1
    return most


def narrowed(communicator: Communicator, crossed: int) -> Communicator:
    """The same ranks for transfers between two of them that have crossed so much
    (``levels_crossed``)."""
    size, name = communicator.size, communicator.name
    if crossed == 0:
        return Communicator(f"{name} inside", size, size, 1)
    return (
        replace(communicator, name=f"{name} in a server", servers=1)
        if crossed == 1
        else communicator
    )


def levels_crossed(first: int, second: int, cluster: Cluster) -> int:
    """0: both ranks lie in one NVLink domain; 1: in several of one server; 2: further apart."""
    levels = cluster.domain, max(cluster.domain, cluster.gpus_per_node)
    return sum(first // gpus != second // gpus for gpus in levels)
