"""Settings that cannot be: exit code 2, the field and what it may be; no internal failure."""

import pytest

from tests.in_process import command

JOB = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64"]
WRONG = {
    "training.sequence_length=100000000000000000000": "at most",
    "training.sequence_length=10000000000": "1..",
    "training.global_batch_size=999999999999": "1..",
    "model.vocab_size=10000000000000000000000000": "at most",
    "model.hidden_size=10000000000": "1..",
    "gpu.nvlink_bytes_per_s=0": "> 0, or gpu.nvlink_links=0",
    "training.tokens=1e40": "at most",
    "recipe.sp=5": "true or false",
    "recipe.sp=-1": "true or false",
    "recipe.sp=0": "true or false",
    "debug=7": "true or false",
    "recipe.tp=3": "here 1, 2, 4, 8",
    "recipe.micro_batch=7": "here 1, 2, 4, 8",
    "recipe.recompute=some": "here none, selective, full",
    "recipe.vpp=2": "here 1",
    "recipe.precision=mxfp8": "bf16",
    "hydra.run.dir=/dev/null/x": "can be written",
    "model.name='\x1b[2J'": "text that can be shown",
    "nothing": "name=value",
    "-sc": "trainscout completion SHELL",
    "-model=gpt13b": "settings: model=gpt13b",
    "cluster.nic_gbps=50GB/s": "a number, in Gb/s",
    "model=[gpt13b,gpt175b]": "one choice",
    "network=[1]": "one choice",
    "training.tokens=soon": "a number: 300e9, 300B or 1T",
    f"training={'x' * 3000}": "choices that ship",
    f"model={'x' * 3000}": "choices that ship",
}


@pytest.mark.parametrize("setting", WRONG)
def test_is_refused_with_what_would_do(setting, capsys):
    assert command("simulate")([*JOB, setting]) == 2
    stated = capsys.readouterr().err
    assert stated.startswith(f"error: {setting.split('=')[0]}") or "command line" in stated
    assert WRONG[setting] in stated.partition(" (")[2]
    assert "\x1b" not in stated


@pytest.mark.parametrize("value", ["best.json", "5", "null", "true"])
def test_what_is_no_recipe(value, capsys):
    assert command("explain")([*JOB, f"b={value}"]) == 2
    assert "is no recipe (b.tp=4 and the like" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["num_experts=100000", "load_imbalance=2147483648"])
def test_experts_beyond_what_there_is(setting, capsys):
    mixtral = ["model=mixtral_8x7b", "cluster=h100_64", f"model.moe.{setting}"]
    assert command("simulate")(mixtral) == 2
    assert "allowed: 1.." in capsys.readouterr().err


def test_one_channel_is_enough_where_switches_reduce(capsys):
    job = ["model=llama3_8b", "cluster=h100_64", "recipe.tp=8", "recipe.sp=true"]
    assert command("simulate")([*job, "cluster.nccl_max_channels=1", "format=json"]) == 0


def test_a_cluster_without_a_gpu_is_refused(tmp_path, capsys):
    (tmp_path / "cluster").mkdir()
    fields = "name: ours\nsource: x\nnum_nodes: 8\ngpus_per_node: 8\nnics_per_node: 8\n"
    (tmp_path / "cluster" / "ours.yaml").write_text(fields + "nic_gbps: 400\nfabric: roce\n")
    asked = ["--config-dir", str(tmp_path), "cluster=ours", "verbosity=quiet"]
    assert command("simulate")(asked) == 2
    assert "cluster=ours: does not say which GPU it has (gpu=h100" in capsys.readouterr().err
    assert command("simulate")([*asked, "gpu=h100"]) == 0
    assert "(64 x h100)" in capsys.readouterr().out
