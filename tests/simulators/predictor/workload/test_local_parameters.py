"""Parameters of all ranks of one replica are the model's, up to padding and replication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parameter_count import count_parameters, norm_parameters
from tests.simulators.jobs import GPT175B, LLAMA, MLA_MOE, MOE, TINY, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.megatron import build_workload

BIASED_MOE = replace(TINY, name="biased_moe", moe=Moe(8, 2, 128), qk_norm=True)
MODELS = (TINY, LLAMA, MOE, MLA_MOE, BIASED_MOE)


def replicated_parameters(job: Job) -> int:
    """What each tensor-parallel rank keeps whole of one copy of the model."""
    model, h = job.model, job.model.hidden_size
    per_layer = 2 * norm_parameters(model, h)
    if model.linear_bias:
        per_layer += h
    if model.mla is not None:
        mla = model.mla
        latents = (mla.kv_lora_rank, mla.q_lora_rank or 0)
        per_layer += h * (sum(latents) + mla.qk_rope_head_dim)
        per_layer += sum(norm_parameters(model, width) for width in latents)
    elif model.qk_norm:
        per_layer += 2 * norm_parameters(model, model.qk_head_dim)
    total = model.num_layers * per_layer + norm_parameters(model, h)
    if model.position == "learned":
        total += max(model.sequence_length, job.sequence_length) * h
    for layer in range(model.num_layers):
        if model.is_moe_layer(layer):
            assert model.moe is not None
            total += h * model.moe.num_experts
            if model.moe.shared_ffn_hidden_size and model.linear_bias:
                total += h
        elif model.linear_bias:
            total += h
    return total


def expected_total(job: Job) -> int:
    """The model's parameters with every copy that the layout adds."""
    model, recipe = job.model, job.recipe
    h, tp = model.hidden_size, recipe.tp
    tables = 1 if model.tied_embeddings else 2
    padding = tables * h * (model.padded_vocab_size(tp) - model.vocab_size)
    copies = (tp - 1) * replicated_parameters(job)
    if model.tied_embeddings and recipe.pp > 1:
        # The last stage keeps its own copy of the embedding.
        copies += h * model.padded_vocab_size(tp)
    if model.mla is None and model.kv_heads < tp:
        width = h + (1 if model.qkv_bias else 0)
        extra = 2 * (tp - model.kv_heads) * model.qk_head_dim * width
        copies += model.num_layers * extra
    if model.moe is not None and model.linear_bias:
        layers = sum(model.is_moe_layer(layer) for layer in range(model.num_layers))
        copies += layers * model.moe.num_experts * h * (job.etp - 1)
    return count_parameters(model).total + padding + copies


def held_by_all_ranks(job: Job) -> int:
    """Dense parameters over tp ranks and expert parameters over etp x ep ranks, all stages."""
    ranks = job.etp * job.recipe.ep
    return sum(
        stage.parameters.dense * job.recipe.tp + stage.parameters.expert * ranks
        for stage in build_workload(job).stages
    )


@given(
    model=st.sampled_from(MODELS),
    vocabulary=st.sampled_from([1000, 1023, 1024]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 8]),
    etp=st.sampled_from([None, 1, 2]),
    vpp=st.sampled_from([1, 3]),
)
def test_all_ranks_hold_the_model(model: Model, vocabulary: int, **recipe: Any) -> None:
    model = replace(model, vocab_size=vocabulary)
    sp = model.moe is not None and recipe["tp"] > 1
    job = make_job(model, nodes=8, batch=64, sp=sp, **recipe)
    if why_invalid(job) is None:
        assert held_by_all_ranks(job) == expected_total(job)


def test_gpt175b_over_eight_by_twelve_ranks() -> None:
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=12)
    assert held_by_all_ranks(job) == expected_total(job)
    # "175B": within a hundredth, copies of the embedding included.
    assert held_by_all_ranks(job) / 1e9 == pytest.approx(175, rel=0.01)


def test_uneven_stages_hold_their_layers() -> None:
    job = make_job(LLAMA, pp=4, first_stage_layers=1, last_stage_layers=3)
    stages = build_workload(job).stages
    per_layer = stages[1].parameters.dense // 4
    embedding = LLAMA.padded_vocab_size(1) * 256
    assert stages[0].parameters.dense == per_layer + embedding
    assert stages[3].parameters.dense == 3 * per_layer + embedding + 256


@pytest.mark.parametrize("pp", [1, 61])
def test_the_extra_prediction_of_deepseek_v3(pp: int) -> None:
    model = load_catalogue().models["deepseek_v3"]
    plain, extended = (
        make_job(replace(model, num_mtp_layers=count), nodes=61, ep=8, pp=pp, batch=488)
        for count in (0, 1)
    )
    added = held_by_all_ranks(extended) - held_by_all_ranks(plain)
    # The released weights' README: 11.5 billion besides the shared embedding and output head;
    # a last stage that is not the first holds the embedding again.
    copy = model.padded_vocab_size(1) * model.hidden_size if pp > 1 else 0
    assert (added - copy) / 1e9 == pytest.approx(11.5, rel=0.01)
