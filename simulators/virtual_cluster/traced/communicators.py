"""Which of the workload's communicators each of Megatron-Core's groups is."""

from __future__ import annotations

from collections.abc import Iterable

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.communicators import place, place_span, spans
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.traces.events import Group

# A group of one rank, which costs nothing (NCCL returns at once).
ALONE = "alone"
# Every rank: the gradient norm under a distributed optimizer.
WORLD = "world"
# ``group_desc`` in ``megatron/core/parallel_state.py``.
_DIMENSIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "stage",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "stage",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": WORLD,
    "EXPERT_DATA_PARALLEL_GROUP": "expert_dp",
    "MODEL_PARALLEL_GROUP": "model",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "expert_model",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EMBEDDING_GROUP": "embedding",
}


def dimensions_of(groups: Iterable[Group]) -> dict[str, str]:
    """Group name -> communicator; a group that no workload knows keeps its description."""
    return {
        group.name: ALONE
        if len(group.ranks) == 1
        else _DIMENSIONS.get(group.description, group.description or WORLD)
        for group in groups
    }


def further_communicators(job: Job) -> dict[str, Communicator]:
    """What Megatron-Core's layers use besides ``workload.communicators``: the ranks that share a
    sequence (statistics of a router), and all of a stage (the largest values of 8-bit tensors)."""
    sharing = job.recipe.tp * job.recipe.cp
    return {
        "tp_cp": place("tp_cp", sharing, 1, job),
        "stage": place_span("stage", (*spans(job)["tp"], *spans(job)["dp"]), job),
    }
