"""Process groups on the cluster, and under which part they are shown."""

from dataclasses import replace

import pytest

from tests.samples import CLUSTER
from tests.simulators.jobs import GPT175B, GPU, make_job
from trainscout.simulators.predictor.collectives.price import price_send_recv
from trainscout.simulators.predictor.replay.priced import PARTS
from trainscout.simulators.predictor.workload.communicators import communicators
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.walk.communicators import (
    communicator_of,
    levels_crossed,
    narrowed,
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


@pytest.mark.parametrize(("domain", "levels"), [(1, [1, 1, 2]), (2, [0, 1, 2]), (8, [0, 0, 2])])
def test_transfers_of_a_pipeline_inside_servers_without_nvlink_take_pcie(
    domain: int, levels: list[int]
) -> None:
    cluster = replace(CLUSTER, num_nodes=2, gpus_per_node=8, nvlink_domain=domain, nic_gbps=1)
    stages = communicator_of("pp", (0, 1, 2, 8), cluster)
    crossed = [levels_crossed(*ends, cluster) for ends in ((0, 1), (1, 2), (2, 8))]
    assert crossed == levels
    links = [narrowed(stages, each) for each in crossed]
    took_s = [price_send_recv(2**26, each.nodes > 1, each, GPU, cluster).seconds for each in links]
    assert took_s[0] <= took_s[1] < took_s[2] / 10
    # NVLink is several times as fast as PCIe.
    assert (took_s[0] < took_s[1] / 3) == (levels[:2] == [0, 1])
