"""What of flash-attn models import beside attention: rotary positions, norms, the loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .kernels import dtype_name, kernel
from .opaque import OpaqueKernel, elementwise, launch, opaque, writes
from .refuse import refused


class _InPlace(torch.autograd.Function):
    """A rotation of a tensor in its own memory, and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        launch("rotary", [x], [cos, sin])
        ctx.save_for_backward(cos, sin)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        out = torch.empty_like(grad)
        launch("rotary", [out], [grad, cos, sin])
        return out, None, None


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotates the first columns of each head."""
    if not inplace:
        return elementwise("rotary", x, cos, sin)
    return _InPlace.apply(x, cos, sin)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Any = None, sin_k: Any = None, **named: Any
) -> Tensor:
    """Queries and keys of a packed projection, in place."""
    return _InPlace.apply(qkv, cos, sin)


def apply_rotary_emb_kv_(kv: Tensor, cos: Tensor, sin: Tensor, **named: Any) -> Tensor:
    """Keys of a packed projection, in place."""
    return _InPlace.apply(kv, cos, sin)


class RotaryEmbedding(torch.nn.Module):
    """Positions' cosines and sines, kept as long as the longest sequence so far."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.base = dim, float(base)
        self.interleaved, self.scale_base = interleaved, scale_base
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Any = None
        self._sin_cached: Any = None

    def _compute_inv_freq(self, device: Any = None) -> Tensor:
        steps = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1.0 / (self.base ** (steps / self.dim))

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        known = self._cos_cached
        if known is None or seqlen > self._seq_len_cached or known.dtype != dtype:
            self._seq_len_cached = seqlen
            positions = torch.arange(seqlen, device=device, dtype=torch.float32)
            angles = torch.outer(positions, self.inv_freq.to(device))
            self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: Any = 0,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:
        """Packed queries, keys and values, or queries and the other two packed."""
        longest = max_seqlen if max_seqlen is not None else qkv.shape[1]
        offset = seqlen_offset if isinstance(seqlen_offset, int) else 0
        self._update_cos_sin_cache(longest + offset, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin)
        return apply_rotary_emb(qkv, cos, sin, inplace=True), apply_rotary_emb_kv_(kv, cos, sin)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *further: Any,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    **named: Any,
) -> Any:
    """A norm of ``x`` plus ``residual``; with ``prenorm``, the sum too."""
    total = x if residual is None else x + residual
    if residual_in_fp32 and prenorm:
        total = total.float()
    dtype = x.dtype
    out = opaque(OpaqueKernel("layer_norm", tuple(x.shape), dtype), total, weight, bias)
    return (out, total) if prenorm else out


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, *a: Any, **b: Any) -> Any:
    """As ``layer_norm_fn``, without a mean."""
    return layer_norm_fn(x, weight, bias, *a, **b)


def norm_forward(x: Tensor, weight: Tensor, bias: Tensor | None, *_: Any, **__: Any) -> Any:
    """``_layer_norm_fwd``, of whose tuple callers beside autograd read the first: the norm."""
    return (elementwise("layer_norm", x, weight, bias),)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``flash_attn.ops.rms_norm.rms_norm``."""
    return elementwise("layer_norm", x, weight)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """``flash_attn.ops.activations.swiglu``: ``silu(x) * y`` in one kernel."""
    return elementwise("swiglu", x, y)


class RMSNorm(torch.nn.Module):
    """A norm over the last dimension."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None, **_: Any
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False) -> Any:
        """Of ``x`` plus ``residual``."""
        return layer_norm_fn(x, self.weight, None, residual, prenorm=prenorm)


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, *options: Any, process_group: Any = None, **named: Any
) -> tuple[Tensor, Tensor]:
    """Each row's loss, and its part that is a penalty of large sums; over ranks' vocabularies."""
    form = OpaqueKernel("cross_entropy", (math.prod(logits.shape[:-1]),), torch.float32)
    losses = opaque(form, logits, labels)
    process_group = options[6] if len(options) > 6 else process_group
    if process_group is not None and torch.distributed.get_world_size(process_group) > 1:
        sums = torch.empty_like(losses)
        torch.distributed.all_reduce(sums, group=process_group)
        torch.distributed.all_reduce(losses.detach(), group=process_group)
    return losses, torch.zeros_like(losses)


class CrossEntropyLoss(torch.nn.Module):
    """``flash_attn.losses.cross_entropy.CrossEntropyLoss``."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", *options: Any, **named: Any
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.process_group = named.get("process_group")
        self.return_z_loss = named.get("return_z_loss", False)

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Any = None) -> Any:
        """Over ``input`` (rows, vocabulary)."""
        losses, penalty = cross_entropy_loss(input, target, process_group=self.process_group)
        if self.reduction == "mean":
            losses, penalty = losses.mean(), penalty.mean()
        elif self.reduction == "sum":
            losses, penalty = losses.sum(), penalty.sum()
        return (losses, penalty) if self.return_z_loss else losses


# The smaller extensions of flash-attn (``csrc/rotary``, ``csrc/xentropy``, ``csrc/layer_norm``,
# ``csrc/fused_dense_lib``): each call is one launch, opaque but for products, with the results
# that their C++ functions make.

dropout_add_ln_parallel_residual_fwd = refused(
    "dropout_layer_norm.dropout_add_ln_parallel_residual_fwd", "norms of parallel residuals"
)


# ``rotary_emb``: both halves of each head turned, into other tensors or in place.
apply_rotary = writes("rotary", 4, 5)


def cross_entropy(logits: Tensor, labels: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """``xentropy_cuda_lib.forward``: losses and sums of exponentials, one a row."""
    losses, sums = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
    launch("cross_entropy", [losses, sums], [logits, labels])
    return losses, sums


def cross_entropy_backward(*args: Any) -> Tensor:
    """``xentropy_cuda_lib.backward``: in place of the logits, if they may go."""
    gradient, logits, sums, labels, _, inplace, *_ = args
    made = logits if inplace else torch.empty_like(logits)
    launch("cross_entropy_backward", [made], [gradient, logits, sums, labels])
    return made


def dropout_add_ln_fwd(
    x0: Tensor, residual: Tensor | None, *args: Any, residual_in_fp32: bool = False
) -> tuple[Tensor | None, ...]:
    """Norm, input of the norm where it is another than ``x0``, mask, means and deviations."""
    gamma, beta, rowscale, colscale, x0_subset, z_subset, dropout_p, _, _, z_numrows, *rest = args
    residual_in_fp32 = rest[1] if len(rest) > 1 else residual_in_fp32
    rows, width = x0.shape if residual is None else residual.shape
    kind = torch.float32 if residual_in_fp32 else x0.dtype
    kind = kind if residual is None else residual.dtype
    changes = (residual, rowscale, colscale, x0_subset)
    another = dropout_p > 0 or kind is not x0.dtype or any(each is not None for each in changes)
    z = x0.new_empty((rows if z_subset is None else z_numrows, width))
    x = x0.new_empty((rows, width), dtype=kind) if another else None
    mask = torch.empty_like(x0, dtype=torch.uint8) if dropout_p > 0 else None
    means, deviations = (x0.new_empty(rows, dtype=torch.float32) for _ in range(2))
    made = (z, x, mask, means, deviations)
    read = (x0, residual, gamma, beta, rowscale, colscale, x0_subset, z_subset)
    launch("dropout_add_norm", made, read)
    return made


def dropout_add_ln_bwd(*args: Any) -> tuple[Tensor | None, ...]:
    """Gradients of input, residual where it is another than the input's, weight and bias, sums of
    the last two by block, and of the scales of columns."""
    read = dz, _, x, _, _, _, _, gamma, rowscale, colscale, x0_subset, _ = args[:12]
    dropout_p, _, x0_numrows, has_residual, *_ = args[12:]
    rows, width = x.shape
    changes = (rowscale, colscale, x0_subset)
    another = dropout_p > 0 or x.dtype is not dz.dtype or any(each is not None for each in changes)
    dx0 = dz.new_empty((rows if x0_subset is None else x0_numrows, width))
    dresidual = torch.empty_like(x) if has_residual and another else None
    sums = [torch.empty_like(gamma) for _ in range(2)]
    # By block of rows: one stands for all.
    sums += [gamma.new_empty((1, width), dtype=torch.float32) for _ in range(2)]
    if colscale is not None:
        sums += [torch.empty_like(colscale), colscale.new_empty((1, width), dtype=torch.float32)]
    made = (dx0, dresidual, *sums)
    launch("dropout_add_norm_backward", made, read)
    return made


def linear_act_forward(
    rows: Tensor, weight: Tensor, bias: Any, is_gelu: bool, save_pre_act: bool, heuristic: int
) -> list[Tensor]:
    """``fused_dense_lib``: a product whose epilogue adds the bias and activates; what went into
    the activation, too, if it is kept (a bit an element before ReLU)."""
    out = _product(rows, weight, "TN", "forward", bias)
    width = out.shape[1] if is_gelu else out.shape[1] // 8
    kind = out.dtype if is_gelu else torch.uint8
    return [out, out.new_empty((len(out), width), dtype=kind)] if save_pre_act else [out]


def bias_act_linear_dgrad_bgrad(
    weight: Tensor, d_output: Tensor, pre_act: Tensor, is_gelu: bool, heuristic: int
) -> list[Tensor]:
    """Gradients before the activation that came before a product, and of its bias."""
    made = _product(d_output, weight, "NN", "dgrad")
    return [made, made.new_empty(made.shape[1])]


def linear_bias_wgrad(
    rows: Tensor, d_output: Tensor, has_d_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of a weight and its bias."""
    if not has_d_bias:
        return _product(d_output, rows, "NT", "wgrad"), None
    dtype = dtype_name(rows.dtype)
    weight, bias = kernel("gemm_bias_grad")(d_output, rows, "NT", "wgrad", dtype, "")
    _make_room(weight)
    return weight, bias


def _product(
    left: Tensor, right: Tensor, layout: str, use: str, bias: Tensor | None = None
) -> Tensor:
    made: Tensor = kernel("gemm")(left, right, layout, use, dtype_name(left.dtype), bias, "")
    _make_room(made)
    return made


def _make_room(made: Tensor) -> None:
    """For cuBLASLt, as long as a call takes."""
    made.new_empty(2**22)
