"""Process groups on the cluster, and under which part they are shown."""

from dataclasses import replace

import pytest

from tests.samples import CLUSTER
from tests.simulators.jobs import GPT175B, make_job
from trainscout.simulators.predictor.replay.priced import PARTS
from trainscout.simulators.predictor.workload.communicators import communicators
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.walk.communicators import (
    communicator_of,
    crosses_domains,
    part_of,
)


@pytest.mark.parametrize(
    ("description", "part"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "cp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("MODEL_PARALLEL_GROUP", "dp"),
        ("EMBEDDING_GROUP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("mesh_dp_shard", "dp"),
        ("mesh_tp", "tp"),
        ("mesh_pp", "pp"),
        ("mesh_ep", "ep"),
        ("default_pg", "dp"),
        ("undefined", "dp"),
    ],
)
def test_parts(description: str, part: str) -> None:
    assert part_of(description) == f"{part}_communication"
    assert part_of(description) in PARTS


@pytest.mark.parametrize("recipe", [{"tp": 8, "pp": 2}, {"tp": 2, "pp": 4}, {"tp": 4, "pp": 2}])
def test_groups_lie_as_the_built_in_workload_lays_them(recipe: dict[str, int]) -> None:
    """Megatron's rank order: tensor parallel innermost, then data, then pipeline."""
    question = make_job(GPT175B, nodes=2, **recipe)
    expected = communicators(question)
    tp, pp = recipe["tp"], recipe["pp"]
    dp = question.world_size // (tp * pp)
    ranks = {
        "tp": range(tp),
        "dp": range(0, tp * dp, tp),
        "pp": range(0, question.world_size, tp * dp),
    }
    for name, members in ranks.items():
        # Switches sum for data-parallel groups, as with Megatron's --use-sharp.
        asked = name == "dp"
        found = communicator_of(name, tuple(members), question.cluster, collnet=asked)
        assert found == expected[name]


def test_uneven_groups_are_spread_over_whole_domains() -> None:
    cluster = replace(CLUSTER, num_nodes=2, gpus_per_node=8)
    # Three members in one node and one in the other count as one in each of four.
    assert communicator_of("g", (5, 6, 7, 8), cluster) == Communicator("g", 4, 2, 2, 4, 2, 2)
    assert communicator_of("g", (0,), cluster) == Communicator("g", 1, 1, 1, 1, 1, 1)
    assert crosses_domains(7, 8, cluster)
    assert not crosses_domains(0, 7, cluster)
