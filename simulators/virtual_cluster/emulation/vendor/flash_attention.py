"""``flash_attn``: FlashAttention-2's functions, and the packing of padded batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import (
    all_gather_single_autograd,
    reduce_scatter_single_autograd,
    wait_tensor,
)

from .extension import flash_attn_2
from .fused_attention import (
    AttentionForm,
    attention_backward,
    attention_forward,
    fused_attention,
)
from .refuse import refusal

# Options of FlashAttention-2 and -3 that are not emulated, and the value that asks for nothing.
_NEUTRAL = {"alibi_slopes": None, "attention_chunk": 0, "block_table": None, "softcap": 0.0}


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: tuple[str, int, int, int],
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    options: dict[str, Any],
    kernel: str = "flash2",
) -> Any:
    for name, neutral in _NEUTRAL.items():
        if options.pop(name, neutral) != neutral:
            raise refusal(f"flash_attn.{name}", "this option", str(neutral))
    hands_out = options.pop("return_attn_probs", False)
    if hands_out and dropout_p:
        raise refusal("flash_attn.return_attn_probs", "probabilities under dropout", "False")
    for name in ("deterministic", "num_splits", "pack_gqa", "sm_margin"):
        options.pop(name, None)
    if used := [name for name, value in options.items() if value is not None]:
        raise refusal(f"flash_attn.{used[0]}", "this option")
    flash_attn_2.check_types(query, key, value)
    layout, sequences, max_q, max_k = form
    scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(query.shape[-1])
    longest = (max_q, max_k)
    full = AttentionForm.flash(
        layout, sequences, longest, causal, window_size, dropout_p, scale, kernel
    )
    out: Tensor = fused_attention(query, key, value, full)
    if not hands_out:
        return out
    # The sums of each row are its second result; without dropout the matrix itself is empty.
    heads = query.shape[-2]
    rows = (heads, query.shape[0]) if layout == "thd" else (sequences, heads, max_q)
    return out, query.new_empty(rows, dtype=torch.float32), query.new_empty(0)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Any:
    """Attention of ``[batch, tokens, heads, width]``."""
    form = ("bshd", q.shape[0], q.shape[1], k.shape[1])
    return _attend(q, k, v, form, dropout_p, softmax_scale, causal, window_size, options)


def flash_attn_qkvpacked_func(qkv: Tensor, *arguments: Any, **options: Any) -> Any:
    """Attention of ``[batch, tokens, 3, heads, width]``."""
    return flash_attn_func(*qkv.unbind(dim=2), *arguments, **options)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """Attention with keys and values in ``[batch, tokens, 2, heads, width]``."""
    return flash_attn_func(q, *kv.unbind(dim=2), *arguments, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Any:
    """Attention of packed sequences, ``[tokens, heads, width]``."""
    form = ("thd", cu_seqlens_q.shape[0] - 1, int(max_seqlen_q), int(max_seqlen_k))
    return _attend(q, k, v, form, dropout_p, softmax_scale, causal, window_size, options)


# Its name in FlashAttention-1, which Megatron-LM asked for until 2023.
flash_attn_unpadded_func = flash_attn_varlen_func


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *arguments: Any, **options: Any
) -> Any:
    """Attention of packed sequences, ``[tokens, 3, heads, width]``."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *arguments)
    q, k, v = qkv.unbind(dim=1)
    return flash_attn_varlen_func(q, k, v, *lengths, **options)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """Attention of packed sequences with keys and values in ``[tokens, 2, heads, width]``."""
    return flash_attn_varlen_func(q, *kv.unbind(dim=1), *arguments, **options)


class FlashSelfAttention(torch.nn.Module):
    """Attention of packed queries, keys and values, as ``flash_attn.modules.mha`` has it."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale, self.options = causal, softmax_scale, options
        self.drop = torch.nn.Dropout(attention_dropout)

    def _settings(self, causal: bool | None) -> dict[str, Any]:
        dropout = self.drop.p if self.training else 0.0
        seen = self.causal if causal is None else causal
        scale = {"dropout_p": dropout, "softmax_scale": self.softmax_scale, "causal": seen}
        return {**self.options, **scale}

    def forward(
        self,
        qkv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Any:
        """Of ``[batch, tokens, 3, heads, width]``, or of packed sequences."""
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self._settings(causal))
        lengths = (cu_seqlens, int(max_seqlen or 0))
        return flash_attn_varlen_qkvpacked_func(qkv, *lengths, **self._settings(causal))


class FlashCrossAttention(FlashSelfAttention):
    """The same with keys and values of their own, ``[batch, tokens, 2, heads, width]``."""

    def forward(  # type: ignore[override]
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Any:
        """Of rows, or of packed sequences."""
        if cu_seqlens is None or cu_seqlens_k is None:
            return flash_attn_kvpacked_func(q, kv, **self._settings(causal))
        lengths = (cu_seqlens, cu_seqlens_k, int(max_seqlen or 0), int(max_seqlen_k or 0))
        return flash_attn_varlen_kvpacked_func(q, kv, *lengths, **self._settings(causal))


def flash_attn_3_func(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> Any:
    """FlashAttention-3 of ``[batch, tokens, heads, width]``."""
    form = ("bshd", q.shape[0], q.shape[1], k.shape[1])
    return _flash_3(q, k, v, form, *arguments, **options)


def flash_attn_3_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *_: Any,
    **options: Any,
) -> Any:
    """FlashAttention-3 of packed sequences, ``[tokens, heads, width]``, or of rows."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        return flash_attn_3_func(q, k, v, **options)
    form = ("thd", cu_seqlens_q.shape[0] - 1, int(max_seqlen_q), int(max_seqlen_k))
    return _flash_3(q, k, v, form, **options)


def _flash_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: tuple[str, int, int, int],
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Any:
    made = _attend(q, k, v, form, 0.0, softmax_scale, causal, window_size, options, "flash3")
    return made[:2] if isinstance(made, tuple) else made


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *_: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    **options: Any,
) -> Any:
    """Attention of ``[batch, tokens, heads, width]`` over cached keys, in rows or pages.

    How many a sequence has stands on the device: taken for as many as its rows or pages hold.
    """
    pages = options.get("page_table", block_table)
    if pages is not None:
        held = pages.shape[1] * k_cache.shape[1]
        caches = (each.flatten(0, 1)[:held] for each in (k_cache, v_cache))
        k_cache, v_cache = (each.expand(q.shape[0], -1, -1, -1) for each in caches)
    form = ("bshd", q.shape[0], q.shape[1], k_cache.shape[1])
    softcap = {"softcap": options.get("softcap", 0.0), "return_attn_probs": return_softmax_lse}
    made = _attend(q, k_cache, v_cache, form, 0.0, softmax_scale, causal, window_size, softcap)
    return made[:2] if return_softmax_lse else made


# flash-attn's functions below autograd, which attention over rings of ranks calls.

# As the compiled functions take them, after those that are only there for packed sequences.
_REST = ("dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _arguments(query: Tensor, packed: bool, args: Any, options: dict[str, Any]) -> list[Any]:
    """The options, by position or name, as the compiled functions take them."""
    names = (*_LENGTHS, *_REST) if packed else _REST
    found = {**options, **dict(zip(names, args, strict=False))}
    window = found.get("window_size", (-1, -1))
    rest = [
        float(found.get("dropout_p", 0.0)),
        found.get("softmax_scale") or 1.0 / math.sqrt(query.shape[-1]),
        bool(found.get("causal")),
        int(found.get("window_size_left", window[0])),
        int(found.get("window_size_right", window[1])),
    ]
    if not packed:
        return rest
    # Behind the scale, whether outputs are zeroed first.
    return [*(found[name] for name in _LENGTHS), *rest[:2], False, *rest[2:]]


def _forward(packed: bool) -> Callable[..., Any]:
    compiled = flash_attn_2.varlen_fwd if packed else flash_attn_2.fwd

    def forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
        """Output, log-sum-exps, no probabilities, the random state."""
        out, stats, _, random = compiled(q, k, v, *_arguments(q, packed, args, options))
        return out, stats, None, random

    return forward


def _backward(packed: bool) -> Callable[..., Any]:
    compiled = flash_attn_2.varlen_bwd if packed else flash_attn_2.bwd
    names = ("dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv")

    def backward(*args: Any, **options: Any) -> Tensor:
        """Gradients into ``dq``, ``dk``, ``dv``; the sums of rows."""
        named = [options.pop(name) for name in names[len(args) :]]
        dout, q, *others = (*args[: len(names)], *named)
        rest = _arguments(q, packed, args[len(names) :], options)
        return compiled(dout.contiguous(), q, *others, *rest)[-1]

    return backward


# FlashAttention-3's, which one function of each serves: packed where offsets are given.

_OPTIONS_3 = ("softmax_scale", "causal", "window_size")
_FORWARD_3 = (
    *("q", "k", "v", "k_new", "v_new", "qv", "out", "cu_seqlens_q", "cu_seqlens_k"),
    *("cu_seqlens_k_new", "seqused_q", "seqused_k", "max_seqlen_q", "max_seqlen_k"),
    *("page_table", "kv_batch_idx", "leftpad_k", "rotary_cos", "rotary_sin", "seqlens_rotary"),
    *("q_descale", "k_descale", "v_descale", *_OPTIONS_3),
)
_BACKWARD_3 = (
    *("dout", "q", "k", "v", "out", "softmax_lse", "cu_seqlens_q", "cu_seqlens_k"),
    *("sequed_q", "sequed_k", "max_seqlen_q", "max_seqlen_k", "dq", "dk", "dv", *_OPTIONS_3),
)


def _form_3(q: Tensor, k: Tensor, given: dict[str, Any]) -> AttentionForm:
    """The form of what is given; what is left in ``given`` asks for nothing, or is refused."""
    offsets = given.pop("cu_seqlens_q", None)
    given.pop("cu_seqlens_k", None)
    longest = (given.pop("max_seqlen_q", None), given.pop("max_seqlen_k", None))
    scale, causal, window = (given.pop(name, None) for name in _OPTIONS_3)
    window = window or (given.pop("window_size_left", -1), given.pop("window_size_right", -1))
    for name in ("deterministic", "num_splits", "pack_gqa", "sm_margin", "rotary_interleaved"):
        given.pop(name, None)
    for name, value in given.items():
        if value is not None and value != _NEUTRAL.get(name):
            raise refusal(f"flash_attn.{name}", "this option")
    layout, sequences = ("thd", offsets.shape[0] - 1) if offsets is not None else ("bshd", len(q))
    if offsets is None:
        longest = (q.shape[1], k.shape[1])
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    return AttentionForm.flash(
        layout, sequences, longest, bool(causal), window, 0.0, scale, "flash3"
    )


def flash_attn_3_forward(*args: Any, **options: Any) -> Any:
    """Output and log-sum-exps; nothing of parts of the keys, which are not split."""
    given = {**dict(zip(_FORWARD_3, args, strict=False)), **options}
    q, k, v = (given.pop(name) for name in ("q", "k", "v"))
    flash_attn_2.check_types(q, k, v)
    out, stats, _ = attention_forward(q, k, v, _form_3(q, k, given))
    return out, stats, None, None


def flash_attn_3_backward(*args: Any, **options: Any) -> Any:
    """Gradients, written into ``dq``, ``dk``, ``dv`` where these are given; the sums of rows."""
    given = {**dict(zip(_BACKWARD_3, args, strict=False)), **options}
    dout, q, k, v, out, stats = (given.pop(name) for name in _BACKWARD_3[:6])
    targets = [given.pop(name, None) for name in ("dq", "dk", "dv")]
    grads = [
        torch.empty_like(like) if each is None else each
        for each, like in zip(targets, (q, k, v), strict=True)
    ]
    attention_backward(dout, q, k, v, out, stats, grads, _form_3(q, k, given))
    return *grads, stats


_flash_attn_forward, _flash_attn_varlen_forward = _forward(False), _forward(True)
_flash_attn_backward, _flash_attn_varlen_backward = _backward(False), _backward(True)


# ``flash_attn.bert_padding``: the packing of padded batches.

try:
    # The real module shows both, and scripts import them from there.
    from einops import rearrange, repeat
except ModuleNotFoundError:
    rearrange = repeat = None

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input"]
__all__ += ["rearrange", "repeat", "unpad_input"]


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """Rows of ``tensor`` at ``indices``."""
    rows = tensor.reshape(tensor.shape[0], tensor.shape[1:].numel())
    picked = torch.gather(rows, 0, indices[:, None].expand(-1, rows.shape[1]))
    return picked.reshape(-1, *tensor.shape[1:])


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Any, ...]:
    """Tokens that are not padding, and where they are."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    offsets = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(rows, indices), indices, offsets, longest, lengths


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Any, ...]:
    """The same where a row holds several sequences, whose lengths it has in the mask's place."""
    width = attention_mask_in_length.shape[-1]
    filled = attention_mask_in_length.sum(dim=-1, keepdim=True)
    mask = torch.arange(width, device=filled.device) < filled
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[torch.nonzero(lengths, as_tuple=False).flatten()]
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    offsets = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(rows, indices), indices, offsets, longest


def index_put_first_axis(values: Tensor, indices: Tensor, rows: int) -> Tensor:
    """``values`` at ``indices`` of as many rows, which are zero elsewhere."""
    return values.new_zeros((rows, *values.shape[1:])).index_copy(0, indices, values)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The other way round."""
    out = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return out.view(batch, seqlen, *out.shape[1:])


# ``flash_attn.utils.distributed``: rows of a group's ranks, with gradients.


def all_gather(input_: Tensor, process_group: Any) -> Tensor:
    """All ranks' rows, one after another."""
    return wait_tensor(all_gather_single_autograd(input_, 0, process_group))


def reduce_scatter(input_: Tensor, process_group: Any) -> Tensor:
    """This rank's rows of the sum."""
    scattered = reduce_scatter_single_autograd(input_, "sum", 0, process_group)
    return wait_tensor(scattered)
