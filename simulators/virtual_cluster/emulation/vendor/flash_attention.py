"""``flash_attn``: FlashAttention-2's functions, and the packing of padded batches."""

from __future__ import annotations

import dis
import inspect
import math
import sys
from collections.abc import Callable
from types import FrameType
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

# Options that are not emulated, and the value that asks for nothing; those that cost nothing.
_NEUTRAL = {"attention_chunk": 0, "zero_tensors": False}
_FREE = (
    *("deterministic", "num_splits", "pack_gqa", "rotary_interleaved", "sm_margin", "softcap"),
    *("return_softmax", "rng_state"),
)

# Parameters in the order of FlashAttention-2 and -3, above autograd and below.
_LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_OF_2 = (
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs block_table"
)
_OF_3 = (
    "softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap "
    "num_splits pack_gqa deterministic sm_margin return_attn_probs"
)
_BELOW_2 = (
    "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes "
    "return_softmax block_table"
)
_GRADIENTS = "dout q k v out softmax_lse"
_FORWARD_3 = (
    "q k v k_new v_new qv out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k "
    "max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin "
    "seqlens_rotary q_descale k_descale v_descale softmax_scale causal window_size"
)
_BACKWARD_3 = (
    f"{_GRADIENTS} cu_seqlens_q cu_seqlens_k sequed_q sequed_k max_seqlen_q max_seqlen_k dq dk dv "
    "softmax_scale causal window_size"
)


class _Call:
    """What a function of flash-attn is given, by name."""

    def __init__(self, names: str, args: Any, options: Any, kernel: str) -> None:
        self._given = {**dict(zip(names.split(), args, strict=False)), **options}
        self._kernel = kernel

    def take(self, *names: str) -> list[Any]:
        """Of what may be left out None."""
        return [self._given.pop(name, None) for name in names]

    def tensors(self) -> list[Tensor]:
        """Queries, keys and values, which may be packed, and so may their sequences' lengths."""
        for packed, names in (("qkv", "qkv"), ("kv", "kv")):
            if packed in self._given:
                self._given.update(zip(names, self._given.pop(packed).unbind(-3), strict=True))
        for name in ("cu_seqlens", "max_seqlen"):
            if name in self._given:
                self._given[f"{name}_q"] = self._given[f"{name}_k"] = self._given.pop(name)
        return self.take("q", "k", "v")

    def form(self, query: Tensor, key: Tensor) -> AttentionForm:
        """How it is called; what is left then asks for nothing, or is refused. That softcap's
        hyperbolic tangent takes time is passed over."""
        starts, _, *longest = self.take(*_LENGTHS.split())
        dropout, scale, causal, window = self.take(*_OF_2.split()[:4])
        left, right = self.take("window_size_left", "window_size_right")
        window = left if isinstance(left, (tuple, list)) else window
        window = window or (-1 if left is None else left, -1 if right is None else right)
        self.take(*_FREE)
        for name, value in self._given.items():
            if value is not None and value != _NEUTRAL.get(name):
                allowed = str(_NEUTRAL.get(name))
                raise refusal(f"flash_attn.{name}", "this option", allowed)
        layout, sequences = ("bshd", len(query)) if starts is None else ("thd", len(starts) - 1)
        if starts is None:
            longest = [query.shape[1], key.shape[1]]
        scale = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
        return AttentionForm.flash(
            layout,
            sequences,
            (int(longest[0]), int(longest[1])),
            bool(causal),
            (int(window[0]), int(window[1])),
            float(dropout or 0.0),
            scale,
            self._kernel,
        )


def _takes_apart(caller: FrameType) -> bool:
    """Whether the next that ``caller`` does to what this call returns is ``[0]`` or ``a, b =``."""
    code = dis.get_instructions(caller.f_code)
    match [each for each in code if each.offset > caller.f_lasti][:2]:
        case [then, *_] if then.opname.startswith("UNPACK"):
            return True
        case [then, after]:
            indexes = after.opname == "BINARY_SUBSCR" or after.argrepr == "[]"
            return indexes and then.argval == 0
    return False


def _function(*names: str, kernel: str = "flash2") -> Callable[..., Any]:
    """Attention of ``[batch, tokens, heads, width]``, or packed sequences' ``[tokens, heads,
    width]``, by parameters of these names."""
    order = " ".join(names)

    def attend(*args: Any, **options: Any) -> Any:
        call = _Call(order, args, options, kernel)
        query, key, value = call.tensors()
        (hands_out,) = call.take("return_attn_probs")
        # FlashAttention-3 handed out rows' sums to all callers until flash-attention@ed20940
        # (September 2025): those who take its result apart, as Wan's scripts, were written for it.
        if kernel == "flash3" and not hands_out:
            hands_out = _takes_apart(sys._getframe(1))
        form = call.form(query, key)
        if hands_out and form.dropout:
            raise refusal("flash_attn.return_attn_probs", "probabilities under dropout", "False")
        flash_attn_2.check_types(query, key, value)
        out = fused_attention(query, key, value, form)
        if not hands_out:
            return out
        # Each row's sum is their second result; without dropout the matrix itself is empty.
        heads = query.shape[-2]
        packed = form.layout == "thd"
        rows = (heads, len(query)) if packed else (form.sequences, heads, form.max_q)
        made = out, query.new_empty(rows, dtype=torch.float32), query.new_empty(0)
        return made if kernel == "flash2" else made[:2]

    # Callers look for the options that a version has.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown = [inspect.Parameter(name, kind) for name in order.split()]
    attend.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return attend


flash_attn_func = _function("q k v", _OF_2)
flash_attn_qkvpacked_func = _function("qkv", _OF_2)
flash_attn_kvpacked_func = _function("q kv", _OF_2)
flash_attn_varlen_func = _function("q k v", _LENGTHS, _OF_2)
# Its name in FlashAttention-1, which Megatron-LM asked for until 2023.
flash_attn_unpadded_func = flash_attn_varlen_func
flash_attn_varlen_qkvpacked_func = _function("qkv cu_seqlens max_seqlen", _OF_2)
flash_attn_varlen_kvpacked_func = _function("q kv", _LENGTHS, _OF_2)
flash_attn_3_func = _function("q k v", _OF_3, kernel="flash3")
flash_attn_3_varlen_func = _function(
    "q k v", _LENGTHS, "seqused_q seqused_k", _OF_3, kernel="flash3"
)


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


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *_: Any,
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
    how = {name: options.get(name) for name in ("softmax_scale", "causal", "window_size")}
    made = flash_attn_func(q, k_cache, v_cache, **how, return_attn_probs=return_softmax_lse)
    return made[:2] if return_softmax_lse else made


# Below autograd, which attention over rings of ranks calls: FlashAttention-3's serve both layouts.


def _forward(*names: str, kernel: str = "flash2") -> Callable[..., Any]:
    def forward(*args: Any, **options: Any) -> Any:
        """Output, log-sum-exps, no probabilities or parts, the random state."""
        call = _Call(" ".join(names), args, options, kernel)
        query, key, value = call.tensors()
        form = call.form(query, key)
        flash_attn_2.check_types(query, key, value)
        out, stats, random = attention_forward(query, key, value, form)
        return out, stats, None, random if kernel == "flash2" else None

    return forward


def _backward(*names: str, kernel: str = "flash2") -> Callable[..., Any]:
    def backward(*args: Any, **options: Any) -> Any:
        """Gradients into ``dq``, ``dk``, ``dv`` where these are given; the sums of rows."""
        call = _Call(" ".join(names), args, options, kernel)
        query, key, value = call.tensors()
        dout, out, stats, *places = call.take("dout", "out", "softmax_lse", "dq", "dk", "dv")
        grads = [
            torch.empty_like(like) if place is None else place
            for place, like in zip(places, (query, key, value), strict=True)
        ]
        form = call.form(query, key)
        attention_backward(dout.contiguous(), query, key, value, out, stats, grads, form)
        return stats if kernel == "flash2" else (*grads, stats)

    return backward


_flash_attn_forward = _forward("q k v", _BELOW_2)
_flash_attn_varlen_forward = _forward("q k v", _LENGTHS, _BELOW_2)
_flash_attn_backward = _backward(_GRADIENTS, "dq dk dv", _BELOW_2)
_flash_attn_varlen_backward = _backward(_GRADIENTS, "dq dk dv", _LENGTHS, _BELOW_2)
flash_attn_3_forward = _forward(_FORWARD_3, kernel="flash3")
flash_attn_3_backward = _backward(_BACKWARD_3, kernel="flash3")


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
