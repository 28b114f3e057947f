"""Layers under autocast: the built-in source beside unmodified models, kernel by kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.sections import Run, emulate
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

pytestmark = needs("transformers")

GPT = Model(
    name="gpt",
    source="the script's",
    num_layers=1,
    hidden_size=512,
    ffn_hidden_size=2048,
    num_heads=8,
    vocab_size=1024,
    sequence_length=256,
    gated_mlp=False,
    normalization="layernorm",
    position="learned",
    linear_bias=True,
    qkv_bias=True,
    dropout=False,
)
LLAMA = replace(
    GPT,
    num_query_groups=2,
    ffn_hidden_size=1536,
    gated_mlp=True,
    normalization="rmsnorm",
    position="rope",
    linear_bias=False,
    qkv_bias=False,
)
CASES = {
    "gpt": (GPT, "torch_eager"),
    "rotary": (replace(GPT, position="rope"), "torch_eager"),
    "complex": (replace(GPT, position="rope"), "torch_eager"),
    "gpt2": (replace(GPT, dropout=True), "huggingface"),
    "llama": (LLAMA, "huggingface"),
    "qwen3": (replace(LLAMA, qk_norm=True), "huggingface"),
}
PASSES = ("forward", "backward")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    options = ("--world-size", 1, "--gpu", "a100_80")
    return emulate(tmp_path_factory.mktemp("autocast"), "autocast.py", *options)


def blocks(case: str, mode: str = "float32") -> dict[str, ir.Block]:
    """Both passes of a layer as predicted, its weights in ``mode``."""
    model, framework = CASES[case]
    catalogue = load_catalogue()
    declared = replace(
        catalogue.frameworks[framework],
        autocast=mode == "float32",
        separate_projections=model.gated_mlp,
        rope="complex" if case == "complex" else "halves",
    )
    cluster = replace(catalogue.clusters["a100_256"], num_nodes=1, gpus_per_node=1)
    training = Training(4, 1e9, None, "bf16")
    recipe = Recipe(micro_batch=4, zero_stage=0)
    job = Job(model, catalogue.gpus["a100_80"], cluster, training, recipe, declared)
    assert job.autocasts == (mode == "float32")
    return dict(
        zip(PASSES, layer_blocks(Shard.of(job), model.layer_kinds[0], "none"), strict=True)
    )


def counted(kernels: Iterable[ir.Op]) -> tuple[Counter[str], Counter[str]]:
    """Bytes and launches, by kind; copies that join or cut tensors, for which software has no
    rule, are left out."""
    moved, launches = Counter[str](), Counter[str]()
    for kernel in kernels:
        if isinstance(kernel, ir.Streaming) and kernel.kind != "memcpy":
            moved[kernel.kind] += kernel.bytes
            launches[kernel.kind] += kernel.launches
        elif isinstance(kernel, ir.Gemm):
            # GPT-2 keeps its weights transposed.
            launches[f"{kernel.dtype} {sorted((kernel.m, kernel.n, kernel.k))}"] += 1
        elif isinstance(kernel, ir.Attention):
            launches[str(replace(kernel, name=""))] += 1
    return moved, launches


def a_layer(run: Run, case: str, pass_: str) -> tuple[Counter[str], Counter[str]]:
    """Half of what three layers do more than one."""
    one, three = (
        counted(
            kernel
            for op in run.of(f"{case} float32 {layers} {pass_}", Op)
            for kernel in lower(op).kernels
        )
        for layers in (1, 3)
    )
    moved = Counter({kind: (three[0][kind] - one[0][kind]) // 2 for kind in three[0]})
    launches = Counter({kind: (three[1][kind] - one[1][kind]) // 2 for kind in three[1]})
    return moved, +launches


@pytest.mark.parametrize("pass_", PASSES)
def test_kernels_of_a_plain_gpt_are_those_that_ran(run: Run, pass_: str) -> None:
    moved, launches = a_layer(run, "gpt", pass_)
    predicted, launched = counted(blocks("gpt")[pass_].ops)
    assert launched == launches
    # Biases and what norms keep a row are left out.
    assert predicted == pytest.approx({kind: moved[kind] for kind in predicted}, rel=0.003)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    ("case", "bytes_", "count"), [("gpt2", 0.003, 0), ("llama", 0.09, 2), ("complex", 0.005, 2)]
)
def test_written_norms_positions_and_activations_move_as_much(
    run: Run, case: str, bytes_: float, count: int, pass_: str
) -> None:
    moved, launches = a_layer(run, case, pass_)
    predicted, launched = counted(blocks(case)[pass_].ops)
    # Kernels that broadcast or stride are priced by more than they move.
    assert sum(predicted.values()) == pytest.approx(sum(moved.values()), rel=bytes_)
    assert sum(launched.values()) == pytest.approx(sum(launches.values()), abs=count)
    products = {kind: number for kind, number in launches.items() if kind.startswith("bf16")}
    assert products == {kind: launched[kind] for kind in products}


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_what_layers_keep_is_what_was_held(run: Run, case: str, mode: str) -> None:
    one, three = (
        int(size)
        for size in re.findall(rf"^{case} {mode} [13] keeps (\d+)$", run.output, re.MULTILINE)
    )
    # Norms keep figures of each row beside.
    kept = blocks(case, mode)["forward"].saved_bytes
    assert kept == pytest.approx((three - one) / 2, rel=0.003)
