"""The built-in workload against recorded Megatron layers, operation by operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.jobs import GPT175B, MIXTRAL_8X7B, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, EXPERT_LAYER
from trainscout.simulators.predictor.workload.ir import Block, Collective, Gemm, GroupedGemm
from trainscout.simulators.predictor.workload.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard

RECORDED = json.loads((Path(__file__).parent / "recorded_layers.json").read_text())
GPT_LAYERS = ("tp8_sp_none", "tp8_sp_full", "tp4_selective")


def events(block: Block) -> list[list[Any]]:
    """Matrix products and collectives of a block in the recorded notation."""
    found: list[list[Any]] = []
    for op in block.ops:
        if isinstance(op, Gemm):
            found.append(["gemm", op.batch, op.m, op.n, op.k])
        elif isinstance(op, GroupedGemm):
            found.append(["gemm", op.groups, op.m_per_group, op.n, op.k])
        elif isinstance(op, Collective):
            found.append([op.kind, op.bytes, op.communicator, op.overlaps])
    return found


def is_core(event: list[Any]) -> bool:
    return event[0] == "gemm" and event[1] > 1


def transposed(event: list[Any]) -> list[Any]:
    """A core product up to transposition: autograd is free to compute either."""
    kind, batch, m, n, k = event
    return [kind, batch, min(m, n), max(m, n), k]


def gpt_blocks(recorded: dict[str, Any]) -> tuple[Block, Block]:
    job = make_job(
        GPT175B, tp=recorded["tp"], sp=recorded["sp"], training={"attention": "unfused"}
    )
    return layer_blocks(Shard.of(job), DENSE_LAYER, recorded["recompute"])


@pytest.mark.parametrize("name", GPT_LAYERS)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_linear_layers_and_collectives_in_recorded_order(name: str, pass_: str) -> None:
    recorded = RECORDED[name]
    block = gpt_blocks(recorded)[pass_ == "backward"]
    ours = [event for event in events(block) if not is_core(event)]
    assert ours == [event for event in recorded[pass_] if not is_core(event)]


@pytest.mark.parametrize("name", GPT_LAYERS)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_attention_core_products(name: str, pass_: str) -> None:
    recorded = RECORDED[name]
    everything = events(gpt_blocks(recorded)[pass_ == "backward"])
    ours = sorted(transposed(event) for event in everything if is_core(event))
    assert ours == sorted(transposed(event) for event in recorded[pass_] if is_core(event))
    # They stand between the same two linear layers.
    assert [is_core(event) for event in everything] == [is_core(e) for e in recorded[pass_]]


@pytest.mark.parametrize("name", ["tp8_sp_none", "tp8_sp_full"])
def test_activations_kept_after_the_forward(name: str) -> None:
    # The recording also keeps the norms' fp32 means and deviations: 4 KiB.
    saved = gpt_blocks(RECORDED[name])[0].saved_bytes
    assert 0 <= RECORDED[name]["saved_bytes"] - saved <= 4096


def test_activations_kept_by_selective_recomputation() -> None:
    # sbh (10 + 24/t) at t = 4; the recording holds 192 MiB more, a scratch buffer for the
    # scores (12 heads more than 2 s^2 bytes each) that is reused by all layers.
    saved = gpt_blocks(RECORDED["tp4_selective"])[0].saved_bytes
    assert saved == 2048 * 12288 * (10 + 24 // 4)
    assert RECORDED["tp4_selective"]["saved_bytes"] >= saved


def test_moe_layer_from_router_to_combine() -> None:
    job = make_job(MIXTRAL_8X7B, gpus_per_node=8, batch=8, ep=8)
    forward, _ = layer_blocks(Shard.of(job), EXPERT_LAYER, "none")
    ours = events(forward)
    ours = ours[ours.index(["gemm", 1, 4096, 8, 4096]) :]
    assert ours == RECORDED["moe_ep8"]["forward"]
