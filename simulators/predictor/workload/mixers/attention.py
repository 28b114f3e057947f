"""Self-attention: projections, rotary positions, cores, MLA, context parallelism."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from trainscout.simulators.predictor.question.layers import AttentionMixer
from trainscout.simulators.predictor.workload.elementwise import (
    kept_of_norm,
    launches_by_document,
    norm_ops,
    repeat_ops,
    rope_by_document,
    rope_ops,
    waits_for_lengths,
)
from trainscout.simulators.predictor.workload.ir import Alloc, Attention, HostSync, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.adapters import (
    copies_attention_output,
    input_bytes,
)
from trainscout.simulators.predictor.workload.linear_layers.linear import (
    bias_grad,
    exchange,
    linear,
)
from trainscout.simulators.predictor.workload.linear_layers.quantise import quantise
from trainscout.simulators.predictor.workload.parameters import projected_widths
from trainscout.simulators.predictor.workload.part import Part, norm
from trainscout.simulators.predictor.workload.shard import Shard

from .gathered_ring import gathered_ring
from .key_exchange import around_ring, gathered_keys
from .sparse_attention import index_parts
from .unfused_attention import block_core, unfused_core

# Queries and keys of fused attention are multiplied tile by tile: half a tile is masked at either
# edge of a window.
_TILE = 128


def attention_parts(shard: Shard, attention: AttentionMixer) -> list[Part]:
    """The parts of one attention sub-layer, from the projections to the output projection."""
    latent = shard.model.mla is not None
    project = _mla_projection(shard, attention) if latent else projection(shard, attention)
    gate = [_gate(shard, attention)] if attention.gated or attention.head_gates else []
    index = attention.index
    inner = [core(shard, attention)] if index is None else index_parts(shard, index)
    return [*project, *inner, *gate, output(shard)]


def _qk_bytes(shard: Shard) -> tuple[int, int, int]:
    """Bytes of this rank's Q, K and V of one micro-batch."""
    model, per_token = shard.model, shard.element_bytes * shard.tokens
    # Latent attention has keys and values for every head.
    kv_heads = shard.kv_heads if model.mla is None else shard.heads
    width, values = model.qk_head_dim * per_token, model.v_head_dim * per_token
    return shard.heads * width, kv_heads * width, kv_heads * values


def projection(shard: Shard, attention: AttentionMixer) -> list[Part]:
    model = shard.model
    widths = projected_widths(shard, attention)
    width = sum(widths)
    forward, backward = linear(
        shard, "qkv", shard.tokens, model.hidden_size, width, parallel="column", joined=widths
    )
    q, k, v = _qk_bytes(shard)
    if attention.reuses_kv:
        k = v = 0
    if model.qkv_bias:
        backward += bias_grad(shard, "qkv", shard.tokens, width)
    saved = _operands(shard, q, k, v)
    elements = (q + k) // shard.element_bytes
    normed, grouped = model.qk_norm or model.qk_norm_whole, shard.kv_heads < shard.heads
    if normed:
        norms, undone = norm_ops(shard, "qk_norm", elements, norms=2 if k else 1)
        forward += norms
        backward = undone + backward
        read = Alloc("qk_norm_input", elements * shard.output_bytes)
        saved += [read, *kept_of_norm(shard, "qk_norm", elements)]
    rotates = model.position == "rope"
    if shard.fusion == "fused" and not shard.separate_projections:
        ahead, back = _cut_out(shard, (q, k, v), normed=normed)
        forward, backward = forward + ahead, back + backward
    elif grouped and not (rotates or normed or shard.separate_projections):
        # Nothing writes queries anew but their being cut out of the packed product, all of which
        # keys and values keep alive.
        forward.append(Streaming("query_copy", "memcpy", 2 * q))
        saved.append(Alloc("packed_q", q))
    if rotates:
        rotate, rotate_back = rope_ops(shard, elements)
        forward += rotate
        backward = rotate_back + backward
        apart = shard.separate_projections or shard.repeats_kv
        sliced = shard.fusion == "eager" or (shard.fusion, shard.attention) == ("fused", "unfused")
        if v and sliced and not apart:
            # Values are a slice of the packed product, all of which they keep alive.
            saved.append(Alloc("packed_qk", q + k))
    repeat, sum_repeated = repeat_ops(shard, k + v)
    forward += repeat
    backward = sum_repeated + backward
    if shard.repeats_kv:
        saved.append(Alloc("repeated_kv", (shard.heads // shard.kv_heads - 1) * (k + v)))
    full = shard.tokens * model.hidden_size * shard.element_bytes
    gathered = full if shard.sp else 0
    return [
        Part(
            tuple(forward),
            tuple(backward),
            tuple(saved),
            forward_peak_bytes=gathered + q + k + v,
            # The gradients of both sides, and the input when it must be gathered again.
            backward_peak_bytes=q + k + v + full + gathered,
            module="qkv",
        )
    ]


def _operands(shard: Shard, q: int, k: int, v: int) -> list[Alloc]:
    """What attention keeps of so many bytes of queries, keys and values: a copy with one scale if
    it multiplies that; along both dimensions, those of blocks are as large as 16 bits."""
    fewer = shard.element_bytes if shard.attention_dtype == "fp8" else 1
    return [Alloc(tag, size // fewer) for tag, size in (("q", q), ("k", k), ("v", v))]


def _cut_out(
    shard: Shard, qkv: tuple[int, int, int], *, normed: bool
) -> tuple[list[Op], list[Op]]:
    """Copies of queries, keys and values, so many bytes each, out of their packed product, and of
    their gradients into it.

    Queries of several groups are reshaped (Megatron-Core, ``get_query_key_value_tensors``), and
    norms' inputs made contiguous. Fused attention takes slices only if it gets all three as they
    are (Transformer Engine, ``get_qkv_layout``), whose gradients it then writes in their places.
    """
    q, k, v = qkv
    grouped, rotates = shard.kv_heads < shard.heads, shard.model.position == "rope"
    fused, reshaped = shard.attention != "unfused", grouped and shard.kv_heads > 1
    if fused and not (grouped or normed or rotates):
        return [], []
    sliced = fused and not rotates
    whether = ((q, reshaped or normed or sliced), (k, normed or sliced), (v, fused))
    copied = [size for size, does in whether if size and does]
    ahead: list[Op] = []
    if copied:
        ahead.append(Streaming("qkv_copy", "memcpy", 2 * sum(copied), launches=len(copied)))
    return ahead, [Streaming("qkv_grad_join", "memcpy", 2 * (q + k + v))]


def _mla_projection(shard: Shard, attention: AttentionMixer) -> list[Part]:
    """Low-rank query and key/value projections (DeepSeek-V2, equations 9-19).

    The down projections are replicated over the tensor-parallel group, the up projections
    sharded by head; the rotary key part is one head shared by all.
    """
    model, mla = shard.model, shard.model.mla
    assert mla is not None
    local, size = shard.local_tokens, shard.element_bytes
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    down_forward, down_backward = linear(shard, "kv_down", local, model.hidden_size, latent)
    if mla.q_lora_rank is not None:
        more_forward, more_backward = linear(
            shard, "q_down", local, model.hidden_size, mla.q_lora_rank
        )
        down_forward += more_forward
        down_backward = more_backward + down_backward
    parts = [Part(tuple(down_forward), tuple(down_backward))]
    keep = input_bytes(shard, "kv_up")
    parts.append(norm(shard, "kv_norm", local, mla.kv_lora_rank, keep_output=keep))
    if mla.q_lora_rank is not None:
        parts.append(norm(shard, "q_norm", local, mla.q_lora_rank, keep_output=keep))
    q, k, v = _qk_bytes(shard)
    q_forward, q_backward = linear(
        shard,
        "q_up",
        shard.tokens,
        model.query_inputs,
        shard.heads * model.qk_head_dim,
        parallel="column",
    )
    kv_forward, kv_backward = linear(
        shard,
        "kv_up",
        shard.tokens,
        mla.kv_lora_rank,
        shard.heads * (mla.qk_nope_head_dim + mla.v_head_dim),
        parallel="column",
        gathered=latent,
    )
    if width := attention.latent_gates(shard.heads, mla.v_head_dim):
        gate, gate_back = linear(
            shard, "gate", shard.tokens, model.hidden_size, width, parallel="column"
        )
        q_forward, q_backward = q_forward + gate, gate_back + q_backward
    rope_bytes = 2 * shard.tokens * mla.qk_rope_head_dim * size * (shard.heads + 1)
    projected = shard.tokens * shard.heads * (mla.qk_nope_head_dim + mla.v_head_dim) * size
    # One by one (as recorded from Megatron-Core 0.16): the angles, their cosine and sine in 16
    # bits, the half turn, two products and their sum, of Q and of K; then what both are joined of.
    launches, looped = (
        ((2, 2), (0, 0)) if shard.fused_rope else ((28, 22), rope_by_document(shard))
    )
    if not shard.fused_rope:
        rope_bytes = 6 * rope_bytes + 2 * (q + k)
    rope: list[Op] = [
        *waits_for_lengths(looped),
        Streaming("rope_fwd", "elementwise", rope_bytes, launches=launches[0] + looped[0]),
        # The projection's rows hold K's first part and V by turns; both are written apart, K with
        # its rotary part, which all heads share.
        Streaming("kv_assemble", "memcpy", projected + k + v),
    ]
    unrope: list[Op] = [
        Streaming("kv_split", "memcpy", projected + k + v),
        Streaming("rope_bwd", "elementwise", rope_bytes, launches=launches[1] + looped[1]),
    ]
    parts.append(
        Part(
            (*q_forward, *kv_forward, *rope),
            (*unrope, *kv_backward, *q_backward),
            tuple(_operands(shard, q, k, v)),
            forward_peak_bytes=q + k + v,
            backward_peak_bytes=q + k + v,
            module="mla_up_proj",
        )
    )
    return parts


def _gate(shard: Shard, attention: AttentionMixer) -> Part:
    """A sigmoid of the gate that a projection made, times what attention made."""
    out = shard.tokens * shard.heads * shard.model.v_head_dim * shard.element_bytes
    gate = out if attention.gated else out // shard.model.v_head_dim
    return Part(
        (Streaming("attention_gate_fwd", "elementwise", 2 * out + gate),),
        (Streaming("attention_gate_bwd", "elementwise", 3 * out + 2 * gate),),
        (Alloc("attention_gate", gate), Alloc("ungated_output", out)),
        forward_peak_bytes=out,
        backward_peak_bytes=out + gate,
        module="core_attn",
    )


def core(shard: Shard, attention: AttentionMixer) -> Part:
    if shard.attention != "unfused":
        return _flash_core(shard, attention)
    return block_core(shard, attention) if shard.attention_block else unfused_core(shard)


def _flash_core(shard: Shard, attention: AttentionMixer) -> Part:
    model, each = shard.model, shard.unpacked
    kv_heads = shard.heads if model.mla is not None or shard.repeats_kv else shard.kv_heads
    q, k, v = _qk_bytes(shard)
    if shard.repeats_kv:
        k, v = (size * (shard.heads // shard.kv_heads) for size in (k, v))
    out = shard.tokens * shard.heads * model.v_head_dim * shard.element_bytes
    logsumexp = 4 * shard.tokens * shard.heads
    ring_step = partial(_ring_step, each, attention, kv_heads)
    held = (out + (k + v if shard.cp > 1 else 0), q + k + v + out)
    if shard.cp == 1:
        forward, backward = (
            _limited(each, attention, shard.heads, kv_heads, each.sequence, pass_)
            for pass_ in ("fwd", "bwd")
        )
    elif shard.cp_comm_type == "a2a":
        forward, backward = _by_heads(each, attention, kv_heads, (q, k, v), out)
    elif shard.cp_comm_type == "all_gather":
        # Keys before half of the queries, and half of its own: cp halves on average over ranks.
        half = each.sequence // 2
        lengths = half, (half if attention.causal else each.sequence) * shard.cp
        piece = partial(_attention, each, shard.heads, kv_heads, lengths, False)
        forward, backward = gathered_keys(shard, (q, k, v), out, piece)
        # Keys are ordered beside those that came, and gradients beside those of pieces, and sums.
        held = (out + shard.cp * (2 * k + v), q + out + shard.cp * (4 * k + 3 * v))
    elif shard.gathers_ring:
        size = shard.element_bytes
        forward, backward = gathered_ring(shard, q // size, (k + v) // size, ring_step)
        # What PyTorch 2.13's ring allocates: beside all keys a merge in fp32; gradients of queries
        # put together in fp32, or those of keys that are sent, came, and are put together.
        kv, cp = k + v, shard.cp
        grads = max(9 * q // 2 + (cp + 8) * kv, 3 * q + (cp + 10) * kv)
        held = (9 * out + cp * kv, out + grads)
    else:
        forward, backward = around_ring(shard, (q, k, v), out, ring_step)
        # All that arrived, and all pieces' outputs (the last rank's have all queries).
        held = (shard.cp * (out + k + v), 2 * q + 5 * (k + v))
    if shard.attention_dtype != shard.dtype:
        # Beside 4 bits these are scaled by blocks of 32 as well.
        low = shard if shard.linear_dtype != "fp4" else replace(shard, precision="mxfp8")
        operands, grad = (size // shard.element_bytes for size in (q + k + v, out))
        forward = [*quantise(low, "core_qkv", operands), *forward]
        backward = [*quantise(low, "core_grad", grad), *backward]
    delayed = shard.attention_dtype == shard.precision == "fp8"
    if delayed:
        # With scales of steps before, kernels write 8 bits, which are cast for others and kept
        # (Transformer Engine 2.2 and 2.9, ``FusedAttnFunc``); with others 16.
        wide = 1 + shard.element_bytes
        forward = [*forward, Streaming("core_output_cast", "cast", wide * grad)]
        backward = [*backward, Streaming("core_qkv_grad_cast", "cast", wide * operands)]
    if attention.reuses_kv:
        # Gradients of keys and values are added to those of the layer that made them.
        backward = [*backward, Streaming("kv_grad_add", "elementwise", 3 * (k + v))]
    if shard.puts_batch_first and shard.batch > 1:
        # Values were cut out of their product into that order.
        forward = [
            Streaming("batch_first_copy", "memcpy", 2 * (q + k), launches=2),
            *forward,
            Streaming("context_copy", "memcpy", 2 * out),
        ]
    saved = [Alloc("logsumexp", logsumexp)]
    # Otherwise the output is the projection's input, which keeps it.
    if delayed or copies_attention_output(shard):
        saved.append(Alloc("core_output", out // shard.element_bytes if delayed else out))
    return Part(
        tuple(forward),
        tuple(backward),
        tuple(saved),
        forward_peak_bytes=held[0],
        backward_peak_bytes=held[1],
        module="core_attn",
    )


def _attention(
    shard: Shard, heads: int, kv_heads: int, lengths: tuple[int, int], causal: bool, pass_: str
) -> Attention:
    model = shard.model
    return Attention(
        f"attention_{pass_}",
        shard.batch,
        heads,
        kv_heads,
        *lengths,
        model.qk_head_dim,
        model.v_head_dim,
        causal and not shard.masked_attention,
        pass_,
        shard.attention_dtype,
        shard.attention,
        dropout=model.dropout,
    )


def _ring_step(
    shard: Shard, attention: AttentionMixer, kv_heads: int, step: int, pass_: str
) -> Attention:
    """Attention to the keys of one rank: a causal triangle of one's own, half of others'; all of
    them where it is not causal."""
    halved = step > 0 and attention.causal
    lengths = shard.sequence, shard.sequence // 2 if halved else shard.sequence
    own = step == 0 and attention.causal
    return _attention(shard, shard.heads, kv_heads, lengths, own, pass_)


def _limited(
    shard: Shard, attention: AttentionMixer, heads: int, kv_heads: int, length: int, pass_: str
) -> list[Op]:
    """Attention whose queries see a window or a chunk of sequences of ``length`` tokens.

    Chunks are shorter sequences. Within a window a query sees ``w - w (w - 1) / 2s`` keys on
    average over a sequence, and a tile at its two edges that is masked.
    """
    whole = _attention(shard, heads, kv_heads, (length, length), attention.causal, pass_)
    if attention.chunk is not None and attention.chunk < length:
        number, rest = divmod(length, attention.chunk)
        pieces = [(number * shard.batch, attention.chunk), (shard.batch, rest)]
        return [
            replace(whole, batch=batch, seq_q=tokens, seq_k=tokens)
            for batch, tokens in pieces
            if tokens
        ]
    if attention.window is not None and not shard.masked_attention:
        window = min(attention.window, length if attention.causal else 2 * length)
        outside = window * (window - 1) / 2
        if not attention.causal:
            outside = (window // 2) * (window // 2 + 1)
        seen = round(window - outside / length + _TILE)
        if (2 if attention.causal else 1) * seen < length:
            return [replace(whole, seq_k=seen, causal=False, estimated=True)]
    return [whole]


def _by_heads(
    shard: Shard, attention: AttentionMixer, kv_heads: int, qkv: tuple[int, ...], output: int
) -> tuple[list[Op], list[Op]]:
    """Shards of the sequence become shards of the heads, and the other way round after: queries,
    keys and values each (Transformer Engine's ``flash_attn_a2a_communicate``)."""
    whole = shard.sequence * shard.cp
    local = shard.heads // shard.cp, kv_heads // shard.cp

    def apart(what: str, *sizes: int) -> list[Op]:
        """By heads, and in order."""
        return [
            op for size in sizes for op in (*exchange(shard, what, size), *_order(shard, size, 13))
        ]

    def together(what: str, *sizes: int) -> list[Op]:
        """In ranks' order, and by tokens."""
        return [
            op for size in sizes for op in (*_order(shard, size, 9), *exchange(shard, what, size))
        ]

    return (
        [
            *apart("qkv_exchange", *qkv),
            *_limited(shard, attention, *local, whole, "fwd"),
            *together("output_exchange", output),
        ],
        [
            *apart("output_grad_exchange", output),
            *_limited(shard, attention, *local, whole, "bwd"),
            *together("qkv_grad_exchange", *qkv),
        ],
    )


def _order(shard: Shard, size: int, each: int) -> list[Op]:
    """Packed tokens of ``size`` bytes are put in order by places that are made for each sequence's
    two parts on every rank: ``each`` launches, as two of the numbers are read by the host, which
    is as much work as two launches each (Transformer Engine 2.11 to 2.18,
    ``reorder_seq_chunks_after_a2a_before_attn_thd``; version 2.19 has a kernel)."""
    launches = launches_by_document(shard, 2 * shard.cp * each)
    if not (launches and shard.order_by_document):
        return []
    return [HostSync("sequence_bounds"), Streaming("sequence_order", "memcpy", 2 * size, launches)]


def output(shard: Shard) -> Part:
    model = shard.model
    width = shard.heads * model.v_head_dim
    forward, backward = linear(
        shard, "attention_output", shard.tokens, width, model.hidden_size, parallel="row"
    )
    if model.linear_bias:
        backward = (
            bias_grad(shard, "attention_output", shard.local_tokens, model.hidden_size) + backward
        )
    full = shard.tokens * model.hidden_size * shard.element_bytes
    kept = input_bytes(shard, "attention_output")
    return Part(
        tuple(forward),
        tuple(backward),
        (Alloc("attention_output_input", int(shard.tokens * width * kept)),),
        forward_peak_bytes=full,
        backward_peak_bytes=2 * full,
        module="attn_out",
    )
