"""The question's own arithmetic: layouts, splits and paddings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import ARCHITECTURES
from tests.simulators.jobs import GPT175B, GPU, LLAMA, MLA_MOE, MOE, NODE, TINY, make_job
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.rules import too_old_for_it
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator


@given(
    layers=st.integers(1, 60),
    pp=st.integers(1, 8),
    first=st.none() | st.integers(1, 20),
    last=st.none() | st.integers(1, 20),
)
def test_layers_per_stage_sum_to_the_model(
    layers: int, pp: int, first: int | None, last: int | None
) -> None:
    model = replace(TINY, num_layers=layers)
    job = make_job(
        model, nodes=pp, batch=8, pp=pp, first_stage_layers=first, last_stage_layers=last
    )
    violation = why_invalid(job)
    if violation is not None:
        assert violation.rule == "pipeline_splits_layers"
        return
    split = job.layers_per_stage
    assert len(split) == pp
    assert sum(split) == layers
    assert min(split) >= 1
    assert first is None or split[0] == first
    assert last is None or split[-1] == last
    assert len(set(split[1:-1])) <= 1


@given(vocabulary=st.integers(1, 300_000), tp=st.sampled_from([1, 2, 4, 8]))
def test_vocabulary_padding_is_the_least_multiple(vocabulary: int, tp: int) -> None:
    model = replace(GPT175B, vocab_size=vocabulary)
    padded = model.padded_vocab_size(tp)
    assert padded % (128 * tp) == 0
    assert 0 <= padded - vocabulary < 128 * tp


def test_vocabulary_padding_of_gpt2() -> None:
    # Megatron-LM pads GPT-2's 50,257 to 50,304 at tp=1 and 51,200 at tp=8.
    model = replace(GPT175B, vocab_size=50257)
    assert model.padded_vocab_size(1) == 50304
    assert model.padded_vocab_size(8) == 51200


def test_sizes_that_follow_from_the_recipe() -> None:
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=6, cp=1, micro_batch=2)
    assert job.world_size == 96
    assert job.dp == 2
    assert job.num_micro_batches == 384
    assert job.tokens_per_step == 1536 * 2048
    assert job.layers_per_stage == (16,) * 6


def test_expert_layout() -> None:
    job = make_job(MOE, nodes=4, tp=4, pp=2, ep=4, etp=1, sp=True)
    assert (job.dp, job.etp, job.expert_dp) == (4, 1, 4)
    assert replace(job, recipe=replace(job.recipe, etp=None)).etp == 4


def test_head_widths() -> None:
    assert GPT175B.qk_head_dim == GPT175B.v_head_dim == 128
    assert replace(LLAMA, head_dim=64).qk_head_dim == 64
    assert (MLA_MOE.qk_head_dim, MLA_MOE.v_head_dim) == (48, 24)
    assert (GPT175B.kv_heads, LLAMA.kv_heads) == (96, 2)


def test_first_layers_of_a_moe_model_may_be_dense() -> None:
    assert [MLA_MOE.is_moe_layer(i) for i in range(4)] == [False, False, True, True]
    assert not TINY.is_moe_layer(11)


def test_expert_layers_may_alternate_with_dense_ones() -> None:
    # Llama 4 Maverick: 24 of 48 layers, the second first.
    alternating = replace(MOE, moe=Moe(8, 2, 128, layer_period=2))
    assert [alternating.is_moe_layer(i) for i in range(4)] == [False, True, False, True]
    after_one = replace(MOE, moe=Moe(8, 2, 128, num_dense_layers=1, layer_period=2))
    assert [after_one.is_moe_layer(i) for i in range(5)] == [False, False, True, False, True]


def test_recipe_and_training_override_sequence_and_precision() -> None:
    job = make_job(precision="fp8", training={"sequence_length": 128, "precision": "fp16"})
    assert (job.precision, job.sequence_length) == ("fp8", 128)
    job = make_job(training={"precision": "fp16"})
    assert (job.precision, job.sequence_length) == ("fp16", 64)


MLA = Mla(64, 32, 16, 24)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (replace(TINY, num_layers=0), "model.num_layers"),
        (replace(TINY, hidden_size=float("nan")), "model.hidden_size"),
        (replace(TINY, num_heads=7), "model.num_heads"),
        (replace(TINY, num_query_groups=3), "model.num_query_groups"),
        (replace(TINY, head_dim=0), "model.head_dim"),
        (replace(TINY, normalization="batchnorm"), "model.normalization"),
        (replace(TINY, position="alibi"), "model.position"),
        (replace(MOE, moe=Moe(4, 5, 128)), "model.moe.top_k"),
        (replace(MOE, moe=Moe(4, 0, 128)), "model.moe.top_k"),
        (replace(MOE, moe=Moe(4, 2, 128, num_dense_layers=12)), "model.moe.num_dense_layers"),
        (replace(MOE, moe=Moe(4, 2, 128, dispatcher="flex")), "model.moe.dispatcher"),
        (replace(MOE, moe=Moe(4, 2, 128, layer_period=0)), "model.moe.layer_period"),
        (replace(MOE, moe=Moe(4, 2, 128, layer_period=13)), "model.moe.num_dense_layers"),
        (replace(TINY, num_mtp_layers=-1), "model.num_mtp_layers"),
        (replace(MOE, moe=Moe(4, 2, 128, load_imbalance=0.9)), "model.moe.load_imbalance"),
        (
            replace(MOE, moe=Moe(4, 2, 128, hot_ratio=0.5, hot_weight=0.8, load_imbalance=2)),
            "model.moe.load_imbalance",
        ),
        (
            replace(MOE, moe=Moe(4, 2, 128, experts_in_turn=True, load_imbalance=2)),
            "model.moe.experts_in_turn",
        ),
        (replace(MOE, moe=Moe(4, 2, 128, hot_ratio=1.5, hot_weight=1)), "model.moe.hot_ratio"),
        (replace(MOE, moe=Moe(4, 2, 128, hot_ratio=0.5)), "model.moe.hot_ratio"),
        (replace(MOE, moe=Moe(4, 2, 128, hot_ratio=0.25, hot_weight=1)), "model.moe.hot_weight"),
        (
            replace(MOE, moe=Moe(4, 2, 128, load_imbalance=float("nan"))),
            "model.moe.load_imbalance",
        ),
        (replace(MOE, moe=Moe(4, 2, 128, capacity_factor=-1)), "model.moe.capacity_factor"),
        (replace(TINY, mla=replace(MLA, kv_lora_rank=0)), "model.mla.kv_lora_rank"),
        (replace(TINY, mla=replace(MLA, q_lora_rank=0)), "model.mla.q_lora_rank"),
        (replace(GPU, sms=0), "gpu.sms"),
        (replace(GPU, sustained_fraction=1.5), "gpu.sustained_fraction"),
        (replace(GPU, peak_flops={"bf17": 1.0}), "gpu.peak_flops"),
        (replace(GPU, peak_flops={"bf16": -1.0}), "gpu.peak_flops.bf16"),
        (replace(NODE, num_nodes=0), "cluster.num_nodes"),
        (replace(NODE, num_nodes=2, nics_per_node=0), "cluster.nics_per_node"),
        (replace(NODE, memory_reserve=1.0), "cluster.memory_reserve"),
        (replace(NODE, oversubscription=0.5), "cluster.oversubscription"),
        (replace(NODE, fabric="infinband"), "cluster.fabric"),
        (replace(NODE, nvlink_domain=0), "cluster.nvlink_domain"),
        (replace(NODE, nccl_version="latest"), "cluster.nccl_version"),
        (Framework(autocast=True, fused_wgrad=True), "framework.autocast"),
    ],
)
def test_impossible_declarations_name_their_field(wrong: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        wrong.check()  # type: ignore[attr-defined]
    assert caught.value.field == field


def test_one_node_needs_no_network() -> None:
    replace(NODE, nics_per_node=0, nic_gbps=0, fabric="none").check()


def test_an_unsupported_precision_has_no_peak() -> None:
    assert GPU.peak("bf16") == 989.4e12
    with pytest.raises(InputError, match=r"training\.precision=fp32"):
        GPU.peak("fp32")


def test_layers_beyond_any_model_are_refused_before_they_are_listed() -> None:
    with pytest.raises(InputError, match=r"model\.num_layers"):
        replace(TINY, num_layers=10**18).check()


@pytest.mark.parametrize(
    ("declared", "kernels", "runs"),
    [
        ("flash", ("flash", "flash2"), "flash"),
        ("flash2", ("flash", "flash2"), "flash2"),
        ("flash", ("flash1",), "unfused"),
        ("flash1", ("flash1",), "flash1"),
        ("flash1", (), "unfused"),
        ("unfused", ("flash",), "unfused"),
    ],
)
def test_fused_attention_needs_a_gpu_that_has_it(
    declared: str, kernels: tuple[str, ...], runs: str
) -> None:
    gpu = replace(GPU, architecture=replace(GPU.architecture, attention_kernels=kernels))
    assert replace(make_job(training={"attention": declared}), gpu=gpu).attention == runs


@pytest.mark.parametrize(
    ("declared", "newest", "runs"),
    [
        ("flash", "flash2", "flash1"),
        ("flash2", "flash", "flash1"),
        # cuDNN's takes masks.
        ("flash", "flash", "flash"),
        ("unfused", "flash2", "unfused"),
    ],
)
def test_flash_attention_2_takes_no_masks(declared: str, newest: str, runs: str) -> None:
    job = make_job(training={"attention": declared})
    gpu = replace(GPU, architecture=replace(GPU.architecture, newest_attention=newest))
    masked = replace(job.framework, masked_attention=True)
    assert replace(job, gpu=gpu, framework=masked).attention == runs


@pytest.mark.parametrize("declared", ["flash", "flash2"])
def test_amds_kernels_take_masks(declared: str) -> None:
    """PyTorch's flash and memory-efficient attention are AOTriton's one kernel there."""
    gpu = replace(GPU, architecture=ARCHITECTURES["cdna3"])
    training = {"attention": declared, "masked_attention": True}
    job = replace(make_job(training=training), gpu=gpu)
    assert job.attention == declared
    assert not too_old_for_it(job)


def test_a_gpu_too_old_for_flash_attention_costs_as_if_unfused() -> None:
    """Prices, memory and what is valid follow what runs, not what was declared."""
    gpu = replace(GPU, architecture=ARCHITECTURES["volta"])
    flash, unfused = (
        replace(make_job(training={"attention": kernel, "precision": "fp16"}), gpu=gpu)
        for kernel in ("flash", "unfused")
    )
    found, expected = (ReplaySimulator().simulate(job) for job in (flash, unfused))
    assert found.step_time_s == expected.step_time_s
    assert found.memory == expected.memory
    parallel = replace(flash, recipe=replace(flash.recipe, cp=2))
    violation = why_invalid(parallel)
    assert violation is not None
    assert violation.field == "recipe.cp" or "cp" in str(violation)
    assert f"{gpu.name} has no flash kernels" in str(violation)
