"""Parameter counts against published totals and against sums done by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parameter_count import count_parameters
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.model import Model


def gpt(**changes: object) -> Model:
    base = Model(
        name="gpt",
        num_layers=2,
        hidden_size=8,
        num_heads=2,
        ffn_hidden_size=32,
        vocab_size=10,
        sequence_length=6,
        source="test",
    )
    return dataclasses.replace(base, **changes)


def llama(**changes: object) -> Model:
    plain = {
        "gated_mlp": True,
        "normalization": "rmsnorm",
        "position": "rope",
        "linear_bias": False,
        "qkv_bias": False,
        "tied_embeddings": False,
    }
    return gpt(**(plain | changes))


def test_gpt_closed_form() -> None:
    # Narayanan et al. 2021 (SC21), eq. 2: 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)), which
    # leaves out only the final layer norm (2 h).
    model = gpt()
    layers, h = 2, 8
    published = 12 * layers * h**2 + 13 * layers * h + (10 + 6) * h
    assert count_parameters(model).total == published + 2 * h


def test_gpt3_175b_is_what_openai_published() -> None:
    # Brown et al. 2020: 174,600 million (Table D.1), with GPT-2's vocabulary of 50257.
    model = gpt(
        num_layers=96,
        hidden_size=12288,
        num_heads=96,
        ffn_hidden_size=4 * 12288,
        vocab_size=50257,
        sequence_length=2048,
    )
    assert count_parameters(model).total == pytest.approx(174_600e6, rel=5e-5)


def test_llama_by_hand() -> None:
    # Per layer: q and o 8x8, k and v 8x4, three 8x32 matrices, two norms of 8.
    model = llama(num_query_groups=1)
    layer = 2 * 64 + 2 * 32 + 3 * 256 + 16
    assert count_parameters(model).total == 2 * 10 * 8 + 2 * layer + 8


def test_explicit_head_dim_and_qk_norm_by_hand() -> None:
    # Two query heads and one group of width 16: q and o 8x32, k and v 8x16, norms of 16.
    model = llama(num_layers=1, num_query_groups=1, head_dim=16, qk_norm=True)
    layer = 2 * 8 * 32 + 2 * 8 * 16 + 2 * 16 + 3 * 256 + 16
    assert count_parameters(model).total == 160 + layer + 8


def test_biases_by_hand() -> None:
    without = count_parameters(gpt(num_layers=1, qkv_bias=False, linear_bias=False)).total
    assert count_parameters(gpt(num_layers=1, linear_bias=False)).total - without == 3 * 8
    # Attention output 8, first MLP matrix 32, second 8.
    assert count_parameters(gpt(num_layers=1, qkv_bias=False)).total - without == 8 + 32 + 8
    gated = gpt(num_layers=1, qkv_bias=False, gated_mlp=True)
    plain = dataclasses.replace(gated, linear_bias=False)
    assert count_parameters(gated).total - count_parameters(plain).total == 8 + 64 + 8


def test_latent_attention_by_hand() -> None:
    mla = Mla(kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3, q_lora_rank=7)
    query = 8 * 7 + 7 + 7 * 2 * (4 + 2)
    key_value = 8 * (5 + 2) + 5 + 5 * 2 * (4 + 3)
    rest = 160 + 8 + (3 * 256 + 16) + 2 * 3 * 8
    assert count_parameters(llama(num_layers=1, mla=mla)).total == rest + query + key_value
    direct = dataclasses.replace(mla, q_lora_rank=None)
    assert (
        count_parameters(llama(num_layers=1, mla=direct)).total
        == rest + 8 * 2 * (4 + 2) + key_value
    )


def test_experts_by_hand() -> None:
    # One dense layer, two expert layers: router 8x4, four experts 3x8x16, shared 3x8x24.
    moe = Moe(
        num_experts=4,
        top_k=1,
        ffn_hidden_size=16,
        shared_ffn_hidden_size=24,
        num_dense_layers=1,
    )
    count = count_parameters(llama(num_layers=3, moe=moe))
    attention_and_norms = 4 * 64 + 16
    expert = 3 * 8 * 16
    assert count.total == (
        160 + 8 + 3 * attention_and_norms + 768 + 2 * (32 + 4 * expert + 3 * 8 * 24)
    )
    assert count.total - count.active == 2 * 3 * expert


@given(
    layers=st.integers(1, 6),
    experts=st.integers(1, 16),
    groups=st.sampled_from([1, 2, 4]),
    tied=st.booleans(),
    data=st.data(),
)
def test_counts_are_consistent(
    layers: int, experts: int, groups: int, tied: bool, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    moe = Moe(num_experts=experts, top_k=top_k, ffn_hidden_size=16)
    model = gpt(
        num_layers=layers,
        num_heads=4,
        num_query_groups=groups,
        tied_embeddings=tied,
        moe=moe,
    )
    count = count_parameters(model)
    assert 0 < count.embedding < count.active <= count.total
    assert (count.active == count.total) == (top_k == experts)
    deeper = count_parameters(dataclasses.replace(model, num_layers=layers + 1))
    assert deeper.total - count.total == (count.total - count.embedding - 16) // layers
    untied = count_parameters(dataclasses.replace(model, tied_embeddings=False))
    assert untied.total - count.total == (80 if tied else 0)
