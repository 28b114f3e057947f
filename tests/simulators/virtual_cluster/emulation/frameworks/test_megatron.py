"""Megatron-core: collectives of tensor, pipeline and data parallelism by their arithmetic."""

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.frameworks.runs import EXAMPLES, emulate
from trainscout.simulators.virtual_cluster.traces.events import Group, PointToPoint

pytestmark = needs("megatron.core", "transformer_engine")

WORLD, TP, PP, RANK = 32, 2, 4, 12
LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY = 8, 256, 8, 256, 2048
MICRO_BATCHES = 8
REPLICAS = WORLD // (TP * PP)
ACTIVATION = 2 * SEQUENCE * HIDDEN


@pytest.fixture(scope="module")
def rank(tmp_path_factory):
    sizes = {
        "num-layers": LAYERS,
        "hidden-size": HIDDEN,
        "num-attention-heads": HEADS,
        "seq-length": SEQUENCE,
        "vocab-size": VOCABULARY,
        "tensor-model-parallel-size": TP,
        "pipeline-model-parallel-size": PP,
        "global-batch-size": MICRO_BATCHES * REPLICAS,
        "train-iters": 2,
    }
    script = [str(EXAMPLES / "megatron_gpt.py"), "--sequence-parallel"]
    script += ["--use-distributed-optimizer", "--overlap-grad-reduce"]
    script += [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    # The first data-parallel rank of the second stage.
    return emulate(tmp_path_factory.mktemp("megatron"), script, world_size=WORLD, rank=RANK)


def group(rank, description: str) -> Group:
    (found,) = {
        each.name: each for each in rank.events(Group) if each.description == description
    }.values()
    return found


def test_groups_are_megatrons(rank):
    assert group(rank, "TENSOR_MODEL_PARALLEL_GROUP").ranks == (12, 13)
    assert group(rank, "PIPELINE_MODEL_PARALLEL_GROUP").ranks == (4, 12, 20, 28)


def test_sequence_parallel_collectives_of_a_layer(rank):
    name = group(rank, "TENSOR_MODEL_PARALLEL_GROUP").name
    passes = LAYERS // PP * MICRO_BATCHES
    for phase, gathers, scatters in (("forward", 2, 2), ("backward", 4, 2)):
        gathered, scattered = (
            [each for each in rank.collectives(kind, 1, phase) if each.group == name]
            for kind in ("all_gather", "reduce_scatter")
        )
        assert len(gathered) == gathers * passes
        assert len(scattered) == scatters * passes
        assert {each.bytes_out for each in gathered} == {ACTIVATION}
        assert {each.bytes_in for each in scattered} == {ACTIVATION}


def test_pipeline_transfers(rank):
    transfers = rank.events(PointToPoint)
    # Two steps; activations one way and gradients the other, from and to both neighbours.
    assert len(transfers) == 2 * 4 * MICRO_BATCHES
    assert {each.bytes for each in transfers} == {ACTIVATION // TP}
    assert {each.peer for each in transfers} == {RANK - 8, RANK + 8}


def test_gradients_are_scattered_and_parameters_gathered(rank):
    layers = LAYERS // PP
    shard = layers * (12 * HIDDEN**2 // TP + (7 // TP * HIDDEN) + 6 * HIDDEN)
    name = group(rank, "DATA_PARALLEL_GROUP_WITH_CP").name
    scattered = [
        each.bytes_in for each in rank.collectives("reduce_scatter", step=1) if each.group == name
    ]
    # Padded so that every rank gets as much; gradients are reduced in fp32.
    assert sum(scattered) == pytest.approx(4 * shard, rel=0.02)
    gathered = [
        each.bytes_out for each in rank.collectives("all_gather", step=1) if each.group == name
    ]
    assert sum(gathered) == pytest.approx(2 * shard, rel=0.02)
