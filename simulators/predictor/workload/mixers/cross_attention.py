"""Attention to what stands beside a model's tokens: a text's encoding, or a tower's output."""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import Alloc, Attention, Streaming
from trainscout.simulators.predictor.workload.linear_layers.adapters import input_bytes
from trainscout.simulators.predictor.workload.linear_layers.linear import bias_grad, linear
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard

from .attention import output
from .unfused_attention import unfused_core


def cross_parts(shard: Shard, _: object = True) -> list[Part]:
    """Queries of the tokens, keys and values of all that is looked at, without a gate."""
    model, h, size = shard.model, shard.model.hidden_size, shard.element_bytes
    tokens, width = model.looked_at
    words = shard.batch * tokens
    queries, pairs = (n * model.qk_head_dim for n in (shard.heads, 2 * shard.kv_heads))
    forward, backward = linear(shard, "cross_q", shard.tokens, h, queries, parallel="column")
    # What is looked at is whole on every rank: only its gradient is summed.
    whole = replace(shard, sp=False)
    kv_forward, kv_backward = linear(whole, "cross_kv", words, width, pairs, parallel="column")
    q, kv = shard.tokens * queries * size, words * pairs * size
    normed = model.qk_norm or model.qk_norm_whole
    norms = [Streaming("cross_qk_norm_fwd", "norm_fwd", 2 * q + kv, 2)] if normed else []
    undone = [Streaming("cross_qk_norm_bwd", "norm_bwd", 3 * q + 3 * kv // 2, 4)] if normed else []
    saved = [Alloc("cross_q", q), Alloc("cross_kv", kv)]
    # In 16 bits all layers keep the same tensor, which is counted where it is made.
    kept = input_bytes(shard, "cross_kv")
    if 0 < kept < size:
        saved.append(Alloc("looked_at", int(words * width * kept)))
    project = Part(
        (*forward, *kv_forward, *norms),
        (
            *undone,
            *kv_backward,
            *backward,
            *bias_grad(shard, "cross_q", shard.tokens, queries),
            *bias_grad(shard, "cross_kv", words, pairs),
        ),
        (*saved, Alloc("cross_qk_norm_input", q + kv // 2)) if normed else tuple(saved),
        forward_peak_bytes=q + kv,
        backward_peak_bytes=q + kv + shard.tokens * h * size,
        module="qkv",
    )

    def attend(pass_: str) -> Attention:
        return Attention(
            f"cross_attention_{pass_}",
            shard.batch,
            shard.heads,
            shard.kv_heads,
            shard.sequence,
            tokens,
            model.qk_head_dim,
            model.v_head_dim,
            causal=False,
            pass_=pass_,
            dtype=shard.dtype,
            kernel=shard.attention,
        )

    attended = Part(
        (attend("fwd"),),
        (attend("bwd"),),
        (Alloc("cross_logsumexp", 4 * shard.tokens * shard.heads),),
        forward_peak_bytes=q,
        backward_peak_bytes=2 * q + kv,
        module="core_attn",
    )
    unfused = shard.attention == "unfused"
    return [project, unfused_core(shard, tokens) if unfused else attended, output(shard)]


def looked_at_part(shard: Shard) -> Part:
    """What all layers that look across keep of it."""
    tokens, width = shard.model.looked_at
    return Part((), (), (Alloc("looked_at", shard.batch * tokens * width * shard.element_bytes),))
