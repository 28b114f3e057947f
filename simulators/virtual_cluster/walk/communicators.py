"""Process groups as the network sees them, and as a step's breakdown names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    domain = cluster.domain
    per_domain = max(Counter(rank // domain for rank in ranks).values())
    # Where members lie unevenly, they are at least spread over whole domains.
    while len(ranks) % per_domain:
        per_domain -= 1
    nodes = len(ranks) // per_domain
    siblings = max(1, domain // per_domain) if nodes > 1 else 1
    domains = [rank // domain for rank in ranks]
    reach = max(domains) - min(domains) + 1
    return Communicator(name, len(ranks), per_domain, nodes, siblings, reach, collnet)


def inside(communicator: Communicator) -> Communicator:
    """The same ranks for transfers between two of one NVLink domain."""
    size = communicator.size
    return Communicator(f"{communicator.name} inside", size, size, 1)


def crosses_domains(first: int, second: int, cluster: Cluster) -> bool:
    return first // cluster.domain != second // cluster.domain
