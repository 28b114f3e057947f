"""How many parameters a declared model has, counted matrix by matrix: the tests' yardstick.

Symbols: h hidden size, a heads, g key/value groups, d query/key head width, v value head width,
f MLP width, E experts, k experts per token, V vocabulary, s positions, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.model import Model


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of one replica of a model, in elements; the vocabulary is not padded.

    ``active`` is what one token passes through: ``total`` less the routed experts it is not
    sent to (the embedding rows it does not look up are counted, as publishers do).
    ``embedding`` is word embedding, learned positions and, when untied, the output projection.
    """

    total: int
    active: int
    embedding: int


def count_parameters(model: Model) -> ParameterCount:
    """Exact parameter count of ``model``, biases and norms included.

    ``total = embedding + sum over layers (attention + MLP + 2 norms) + final norm``.
    Buffers that no gradient reaches (RoPE tables, DeepSeek-V3's expert-selection bias) and
    multi-token-prediction modules are not part of the model and are not counted.
    """
    embedding = embedding_parameters(model)
    every_layer = attention_parameters(model) + 2 * norm_parameters(model, model.hidden_size)
    dense_mlp = mlp_parameters(model, model.ffn_hidden_size)
    moe_layers = sum(model.is_moe_layer(layer) for layer in range(model.num_layers))
    total = (
        embedding
        + model.num_layers * every_layer
        + (model.num_layers - moe_layers) * dense_mlp
        + norm_parameters(model, model.hidden_size)
    )
    idle = 0
    if model.moe is not None:
        moe = model.moe
        expert = mlp_parameters(model, moe.ffn_hidden_size)
        shared = mlp_parameters(model, moe.shared_ffn_hidden_size)
        router = model.hidden_size * moe.num_experts
        total += moe_layers * (router + shared + moe.num_experts * expert)
        idle = moe_layers * (moe.num_experts - moe.top_k) * expert
    return ParameterCount(total=total, active=total - idle, embedding=embedding)


def embedding_parameters(model: Model) -> int:
    """``V h``, doubled when the output projection is not tied, plus ``s h`` learned positions."""
    words = model.vocab_size * model.hidden_size
    positions = model.sequence_length * model.hidden_size if model.position == "learned" else 0
    return words * (1 if model.tied_embeddings else 2) + positions


def attention_parameters(model: Model) -> int:
    """Attention of one layer, without the norm in front of it.

    Multi-head or grouped-query: query, key and value ``h (a d + g d + g v)`` (bias: one per
    output), output ``a v h`` (bias ``h``), with ``qk_norm`` one norm of width d each for queries
    and keys. Latent attention (``mla``): see the body; DeepSeek-V2, section 2.1.
    """
    if model.mla is not None:
        return _latent_attention_parameters(model, model.mla)
    h, heads, groups = model.hidden_size, model.num_heads, model.kv_heads
    qkv_width = (heads + groups) * model.qk_head_dim + groups * model.v_head_dim
    count = h * qkv_width + heads * model.v_head_dim * h
    if model.qkv_bias:
        count += qkv_width
    if model.linear_bias:
        count += h
    if model.qk_norm:
        count += 2 * norm_parameters(model, model.qk_head_dim)
    return count


def _latent_attention_parameters(model: Model, mla: Mla) -> int:
    """DeepSeek-V2, equations 9-17: low-rank query, joint low-rank key and value.

    Query: ``h a d`` directly, or ``h r_q`` down, norm, ``r_q a d`` up. Key and value:
    ``h (r_kv + d_rope)`` down (the RoPE key is shared by the heads), norm on the latent,
    ``r_kv a (d_nope + v)`` up. Output: ``a v h``. No biases.
    """
    h, heads = model.hidden_size, model.num_heads
    if mla.q_lora_rank is None:
        query = h * heads * model.qk_head_dim
    else:
        rank = mla.q_lora_rank
        query = h * rank + norm_parameters(model, rank) + rank * heads * model.qk_head_dim
    key_value = (
        h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        + norm_parameters(model, mla.kv_lora_rank)
        + mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    )
    return query + key_value + heads * mla.v_head_dim * h


def mlp_parameters(model: Model, width: int) -> int:
    """One MLP (or expert) of inner width f: ``2 h f``, ``3 h f`` when gated.

    Biases: one per inner output (both halves when gated) and ``h``. Width 0 has no parameters.
    """
    if width == 0:
        return 0
    inner = width * (2 if model.gated_mlp else 1)
    count = model.hidden_size * inner + width * model.hidden_size
    if model.linear_bias:
        count += inner + model.hidden_size
    return count


def norm_parameters(model: Model, width: int) -> int:
    """Scale of one norm, and for ``layernorm`` its shift."""
    return width * (2 if model.normalization == "layernorm" else 1)
