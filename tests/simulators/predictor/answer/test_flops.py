"""FLOPs of a step against the published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.parameter_count import count_parameters
from tests.simulators.jobs import GPT175B, LLAMA, MIXTRAL_8X7B, TINY, make_job
from trainscout.simulators.predictor.answer.flops import (
    attention_core_flops,
    layer_flops,
    step_flops,
)
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, EXPERT_LAYER


def gpt_job(**recipe: object) -> Job:
    return make_job(GPT175B, nodes=8, batch=64, tp=8, pp=8, **recipe)


def korthikanti(job: Job, *, attention: float = 1 / 6) -> float:
    """72 B L s h^2 (1 + s/6h + V/12hL), Korthikanti et al. 2022, equation 7."""
    model = job.model
    b, layers, s, h = job.training.global_batch_size, model.num_layers, 2048, model.hidden_size
    bracket = 1 + attention * s / h + model.vocab_size / (12 * h * layers)
    return 72 * b * layers * s * h**2 * bracket


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_model_flops_ignore_recomputation(recompute: str) -> None:
    job = gpt_job(recompute=recompute)
    assert step_flops(job).model == pytest.approx(korthikanti(job), rel=1e-12)


def test_the_causal_count_leaves_half_of_attention_out() -> None:
    job = gpt_job(recompute="full")
    assert step_flops(job).causal == pytest.approx(korthikanti(job, attention=1 / 12), rel=1e-12)


def test_hardware_flops_without_recomputation_are_the_model_flops() -> None:
    flops = step_flops(gpt_job())
    assert flops.hardware == flops.model


def test_hardware_flops_with_selective_recomputation() -> None:
    # The core runs four times instead of three: s/6h becomes 2s/9h.
    job = gpt_job(recompute="selective")
    assert step_flops(job).hardware == pytest.approx(korthikanti(job, attention=2 / 9), rel=1e-12)


def test_hardware_flops_with_full_recomputation() -> None:
    # 96 B s L h^2 (1 + s/6h + V/16Lh), Narayanan et al. 2021, equation 3.
    job = gpt_job(recompute="full")
    b, layers, s, h, vocab = 64, 96, 2048, 12288, 51200
    expected = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert step_flops(job).hardware == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("recipe", "recomputed"),
    [
        ({"pp": 2, "recompute_layers": 6}, 12),
        ({"pp": 2, "recompute_layers": 1}, 2),
        ({"pp": 2, "vpp": 3, "recompute_layers": 1}, 6),
        # The short first stage has no more layers to recompute than it holds.
        ({"pp": 2, "first_stage_layers": 2, "recompute_layers": 4}, 2 + 4),
        ({"pp": 4, "recompute_layers": 3, "recompute_taper": 1}, 3 + 2 + 1),
        ({"pp": 4, "recompute_taper": 2}, 3 + 1),
        ({"pp": 4, "first_stage_layers": 2, "last_stage_layers": 2, "recompute_layers": 3}, 10),
    ],
)
def test_block_recomputation_repeats_its_layers_only(
    recipe: dict[str, int], recomputed: int
) -> None:
    job = make_job(TINY, recompute="full", **recipe)
    flops = step_flops(job)
    one_layer = layer_flops(TINY, 64, DENSE_LAYER) * job.tokens_per_step
    assert flops.hardware - flops.model == pytest.approx(recomputed * one_layer, rel=1e-12)


def test_gated_grouped_query_layer() -> None:
    # Per token and step, 12 h^2 (1 + q/a + s/h) + 6 g h f with g = 3 matrices: here a third of it.
    model, s = LLAMA, 64
    h, f, shared = model.hidden_size, model.ffn_hidden_size, 2 / 8
    expected = 12 * h**2 * (1 + shared + s / h) + 18 * h * f
    assert 3 * layer_flops(model, s, DENSE_LAYER) == pytest.approx(expected, rel=1e-12)


def test_llama3_70b_per_token() -> None:
    # 482 GFLOP per token at 8,192 tokens with full attention (NeMo 24.07's published rates).
    model = replace(
        LLAMA,
        num_layers=80,
        hidden_size=8192,
        num_heads=64,
        num_query_groups=8,
        ffn_hidden_size=28672,
        vocab_size=128256,
    )
    job = make_job(model, training={"sequence_length": 8192})
    assert step_flops(job).model / job.tokens_per_step == pytest.approx(482e9, rel=2e-3)


def test_moe_counts_active_experts_and_router() -> None:
    model = MIXTRAL_8X7B
    dense = replace(model, moe=None)
    extra = layer_flops(model, 4096, EXPERT_LAYER) - layer_flops(dense, 4096, DENSE_LAYER)
    h, f = 4096, 14336
    assert extra == 2 * h * f * 3 + 2 * h * 8


def test_six_flops_per_active_matrix_parameter() -> None:
    # Outside attention each active matrix element costs 6 per token; norms are not matrices and
    # the input embedding is looked up.
    model = replace(MIXTRAL_8X7B, qk_norm=False)
    job = make_job(model, training={"sequence_length": 4096})
    norms = model.hidden_size * (2 * model.num_layers + 1)
    matrices = count_parameters(model).active - norms - model.vocab_size * model.hidden_size
    attention = 3 * attention_core_flops(model, 4096) * model.num_layers
    per_token = step_flops(job).model / job.tokens_per_step
    assert per_token == pytest.approx(6 * matrices + attention, rel=1e-12)


def test_extra_prediction_counts_a_layer_a_head_and_its_projection() -> None:
    # DeepSeek-V3 section 2.2: the projection joins two hidden states, 2 x 2h x h FLOPs a token.
    h = LLAMA.hidden_size
    one_more = layer_flops(LLAMA, 64, DENSE_LAYER) + 2 * h * LLAMA.vocab_size + 4 * h**2
    plain, extended = (
        step_flops(make_job(replace(LLAMA, num_mtp_layers=count))).model for count in (0, 2)
    )
    tokens = make_job(LLAMA).tokens_per_step
    assert extended - plain == pytest.approx(3 * 2 * one_more * tokens, rel=1e-12)
