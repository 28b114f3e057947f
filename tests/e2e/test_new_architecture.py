"""A GPU of an architecture that nobody ships: YAML alone, every answer, nothing but estimates."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

import trainscout as ts
from tests.in_process import command
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import price_collective, price_send_recv
from trainscout.simulators.predictor.workload.ir import Communicator

FILES = {
    "architecture/npu_one.yaml": """
        defaults: [generic, _self_]
        name: npu_one
        vendor: acme
        attention_kernels: [flash]
        """,
    "gpu/npu.yaml": """
        name: npu
        architecture: npu_one
        compute_capability: 1.0
        sms: 64
        peak_flops: {bf16: 400.0e12, fp8: 800.0e12}
        memory_bytes: 103079215104
        memory_bandwidth_bytes_per_s: 2000.0e9
        l2_bytes: 67108864
        nvlink_links: 4
        nvlink_bytes_per_s: 200.0e9
        pcie_bytes_per_s: 64.0e9
        price_usd_per_hour: 1.5
        """,
    "cluster/npus.yaml": """
        defaults:
          - override /gpu@_global_.gpu: npu
          - _self_
        name: npus
        source: made up
        num_nodes: 2
        gpus_per_node: 8
        nics_per_node: 8
        nic_gbps: 200
        fabric: roce
        """,
}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path / "mine"


def test_the_commands_answer(
    mine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    question = ["--config-dir", mine, "model=llama3_8b", "cluster=npus", "format=json"]
    question += ["training.global_batch_size=64", f"hydra.run.dir={tmp_path}/out"]
    recipe = ["recipe.tp=2", "recipe.sp=true", "recipe.precision=fp8"]
    assert command("simulate")([*question, *recipe]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["evidence_share"]["estimated"] == pytest.approx(1.0)
    assert answer["memory"]["peak_allocated_bytes"] > 2**30
    search = ["search=random", "search.n_trials=6", "space=moye", "executor=serial"]
    assert command("optimize")([*question, *search]) == 0
    found = json.loads((tmp_path / "out" / "top_recipes.json").read_text())
    assert found[0]["prediction"]["step_time_s"] > 0


def test_the_python_api_answers_from_names_and_from_files(mine: Path) -> None:
    named = ts.question("llama3_8b", "npus", config_dir=mine, global_batch_size=64)
    assert named.gpu.architecture.vendor == "acme"
    by_file = ts.question(
        "llama3_8b", "h100_64", gpu=mine / "gpu" / "npu.yaml", num_nodes=2, global_batch_size=64
    )
    assert by_file.gpu.architecture == named.gpu.architecture
    steps = [ts.predict(each, zero_stage=1) for each in (named, by_file)]
    assert all(step.step_time_s > 0 for step in steps)
    best = ts.search(named, search="random", n_trials=5, executor="serial").best
    assert best.step_time_s > 0


def test_it_is_no_nvidia_gpu(mine: Path) -> None:
    """Neither multicast nor NCCL's protocols for NVLink, whatever its compute capability is."""
    cluster, gpu = load_catalogue(mine).machines("npus")
    for capability in (1.0, 9.0, 10.0):
        from dataclasses import replace

        numbered = replace(gpu, compute_capability=capability)
        for nodes in (1, 2):
            group = Communicator("dp", 8 * nodes, 8, nodes)
            price = price_collective("all_reduce", 2**26, group, numbered, cluster)
            assert price.evidence is Evidence.ESTIMATED
            assert not price.algorithm.startswith("nvls")
            assert price.protocol != "ll128"
            sent = price_send_recv(2**20, nodes > 1, group, numbered, cluster)
            assert sent.evidence is Evidence.ESTIMATED


def test_a_misspelt_architecture_is_refused_with_the_nearest(
    mine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("simulate")(["--config-dir", mine, "cluster=npus", "gpu.architecture=npu_on"])
    assert "gpu.architecture=npu_on" in (stated := capfd.readouterr().err)
    assert "did you mean 'npu_one'" in stated
