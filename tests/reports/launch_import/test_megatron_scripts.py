"""What Megatron-LM's launch scripts say beside arguments: GPUs and variables."""

import pytest

from tests.reports.launch_import.samples import SHAPE, read, read_written, written
from tests.samples import CLUSTER
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("text", "nodes", "per_node"),
    [
        ("torchrun --nnodes 4 --nproc_per_node=4 pretrain_gpt.py", 4, 4),
        (
            "N=8\npython -m torch.distributed.run --nnodes $N --nproc-per-node 8 pretrain_gpt.py",
            8,
            8,
        ),
        ("#SBATCH --nodes=3\n#SBATCH --gres=gpu:h100:4\nsrun python pretrain_gpt.py", 3, 4),
        ("NNODES=5\nGPUS_PER_NODE=8\npython pretrain_gpt.py", 5, 8),
        ("WORLD_SIZE=64\npython pretrain_gpt.py", 8, 8),
        ("torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py", 2, 8),
        ("python pretrain_gpt.py", 2, 8),
        ("torchrun --nproc-per-node 8 pretrain_gpt.py", 1, 8),
        ("torchrun --nnodes=$UNSET --nproc-per-node 8 pretrain_gpt.py", 2, 8),
    ],
)
def test_gpus_are_those_that_the_script_starts(tmp_path, text, nodes, per_node):
    cluster = read_written(tmp_path, f"{text} {SHAPE}").question.cluster
    assert (cluster.num_nodes, cluster.gpus_per_node) == (nodes, per_node)


@pytest.mark.parametrize("wrong", ["--nproc_per_node=eight", "--nnodes 0"])
def test_what_is_no_number_of_gpus_is_refused(tmp_path, wrong):
    with pytest.raises(InputError, match=r"is no number of (GPUs|nodes)"):
        read_written(tmp_path, f"torchrun {wrong} pretrain_gpt.py {SHAPE}")


def test_the_declared_cluster_where_degrees_do_not_divide(tmp_path):
    text = f"torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py {SHAPE}"
    imported = read_written(tmp_path, text + " --tensor-model-parallel-size 16")
    assert imported.question.cluster == CLUSTER
    assert any("does not divide" in note for note in imported.reading.notes)
    kept = read(written(tmp_path, text), stated=("cluster.num_nodes",))
    assert kept.question.cluster == CLUSTER
    asked = read(written(tmp_path, text), stated=("gpus",))
    assert asked.question.cluster == CLUSTER
    assert "it starts 8 GPUs: the 16 of gpus= count" in asked.reading.notes


def test_variables_of_nccl_and_the_allocator(tmp_path):
    text = (
        "export NCCL_ALGO=Tree\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "CUDA_LAUNCH_BLOCKING=1 TORCH_NCCL_BLOCKING_WAIT=1 "
        f"NCCL_MAX_NCHANNELS=8 torchrun pretrain_gpt.py {SHAPE}"
    )
    imported = read_written(tmp_path, text)
    assert (imported.recipe.nccl_algo, imported.recipe.nccl_max_channels) == ("tree", 8)
    framework = imported.question.framework
    assert framework.expandable_segments
    assert framework.launch_blocking
    assert "TORCH_NCCL_BLOCKING_WAIT=1" in dict(imported.reading.not_modelled)


def test_every_variable_of_a_library_is_accounted_for(tmp_path):
    text = "export NVTE_FUSED_ATTN=0 NVTE_FLASH_ATTN=0 NCCL_NVLS_ENABLE=0 NCCL_CROSS_NIC=1\n"
    text += f"NCCL_DEBUG=WARN NCCL_IB_DISABLE=0 torchrun pretrain_gpt.py {SHAPE}"
    imported = read_written(tmp_path, text)
    assert imported.question.framework.attention == "unfused"
    assert set(dict(imported.reading.not_modelled)) == {"NCCL_NVLS_ENABLE=0", "NCCL_CROSS_NIC=1"}
    assert {"NCCL_DEBUG=WARN", "NCCL_IB_DISABLE=0"} <= set(imported.reading.no_effect)


def test_gpus_that_nobody_says_are_said_to_be_assumed(tmp_path):
    text = f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SHAPE}"
    (note,) = (each for each in read_written(tmp_path, text).reading.notes if "assumed" in each)
    assert "gpus=16xH100" in note
    network = read(written(tmp_path, text), stated=("gpu",)).reading.notes
    assert any("on which network is not said" in each for each in network)
    asked = read(written(tmp_path, text), stated=("cluster",)).reading.notes
    assert not any("assumed" in each for each in asked)


def test_whether_switches_sum_is_the_clusters(tmp_path):
    asked = "NCCL_COLLNET_ENABLE=1 torchrun pretrain_gpt.py --use-sharp " + SHAPE
    assumed = dict(read_written(tmp_path, asked).reading.not_modelled)
    instead = "cluster.sharp= says whether switches sum"
    assert {assumed["NCCL_COLLNET_ENABLE=1"], assumed["--use-sharp"]} == {instead}


def test_a_value_that_nothing_sets_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, f"python train.py {SHAPE} --tensor-model-parallel-size $TPSIZE")
    with pytest.raises(InputError, match=r"--tensor-model-parallel-size=\$TPSIZE"):
        read(path)
    monkeypatch.setenv("TPSIZE", "2")
    assert read(path).recipe.tp == 2


def test_arguments_that_nothing_sets_are_unknown(tmp_path, monkeypatch):
    monkeypatch.delenv("EXTRA", raising=False)
    reading = read_written(
        tmp_path, "torchrun pretrain_gpt.py --micro-batch-size 1 --bf16 $EXTRA\n"
    ).reading
    assert [each.argument for each in reading.unknown] == ["$EXTRA"]
