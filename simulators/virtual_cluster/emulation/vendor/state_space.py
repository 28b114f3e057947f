"""``mamba_ssm`` and ``causal_conv1d``: scans of state-space models, as chunks and their products.

Shapes as in ``mamba_ssm.ops.triton.ssd_combined`` 2.2: b sequences of l tokens, h heads of width
p, g groups of n states, chunks of c tokens (Dao and Gu 2024, section 6).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import flash_layers
from .opaque import OpaqueKernel, Product, elementwise, launch, opaque
from .refuse import refusal, refused

_INFERENCE = "a step of inference"
causal_conv1d_update = refused("causal_conv1d.causal_conv1d_update", _INFERENCE)
causal_conv1d_varlen_states = refused("causal_conv1d_varlen_states", _INFERENCE)
selective_state_update = refused("mamba_ssm.selective_state_update", _INFERENCE)


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """A short convolution over each channel of ``x`` (b, channels, l), and its activation."""
    if return_final_states:
        raise refusal("causal_conv1d_fn.return_final_states", _INFERENCE, "False")
    return elementwise("causal_conv1d", x, weight, bias, seq_idx, initial_states)


def conv1d_forward(x: Tensor, *tensors: Any) -> Tensor:
    """``causal_conv1d_cuda.causal_conv1d_fwd``: of those tensors that there are."""
    out = torch.empty_like(x)
    read = [each for each in (x, *tensors) if isinstance(each, Tensor)]
    launch("causal_conv1d", [out], read)
    return out


def conv1d_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    """``causal_conv1d_cuda.causal_conv1d_bwd``: gradients of its input, weight, bias and state.

    After ``dout`` come a place for the input's and the activation; before these sequences (from
    1.1 on) and states (from 1.2 on, which then have a gradient)."""
    states = rest[1:2] if len(rest) > 3 else ()
    sequences = rest[0] if len(rest) > 2 else None
    return _gradients("causal_conv1d_backward", (x, weight, bias, *states), dout, sequences)


def _gradients(
    name: str, inputs: tuple[Tensor | None, ...], *further: Tensor | None
) -> tuple[Tensor | None, ...]:
    """One of each input that there is, by one launch that reads ``further`` tensors, too."""
    grads = [None if each is None else torch.empty_like(each) for each in inputs]
    launch(name, grads, [*inputs, *further])
    return tuple(grads)


def _scan(
    form: dict[str, int],
    dtype: torch.dtype,
    gate: Tensor | None,
    *tensors: Tensor | None,
    remade: tuple[int, ...] = (),
) -> Tensor:
    """The chunked scan: states of chunks, products inside of them, and both put together; the
    backward pass makes some of them again."""
    products, shape = _products(form), (form["b"], form["l"], form["h"], form["p"])
    again = _again(products)
    gated = gate is not None
    form_of = OpaqueKernel("mamba_chunk_scan", shape, dtype, products, again, True, remade, gated)
    return opaque(form_of, *tensors, gate)


def _again(products: tuple[Product, ...]) -> tuple[Product, ...]:
    """States and scores, and the products that scores' gradients are of, once more for those of
    the decays."""
    states, scores, inside, _ = products
    return states, scores, Product(inside.batch, inside.rows, inside.inner, inside.columns)


def _products(form: dict[str, int]) -> tuple[Product, ...]:
    b, tokens, h, p, g, n = (form[name] for name in "blhpgn")
    c = min(form["c"], tokens)
    chunks = b * -(-tokens // c)
    return (
        Product(chunks * h, p, n, c),
        Product(chunks * g, c, c, n),
        Product(chunks * h, c, p, c),
        Product(chunks * h, c, p, n),
    )


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803 - the package's names
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    chunk_size: int,
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Any:
    """``x`` (b, l, h, p); ``B`` and ``C`` (b, l, g, n); final states (b, h, p, n) if wanted."""
    if return_varlen_states:
        raise refusal("mamba_chunk_scan_combined.return_varlen_states", _INFERENCE, "False")
    sizes = _sizes(x, B, chunk_size)
    out = _scan(sizes, x.dtype, z, x, dt, A, B, C, D, dt_bias, initial_states)
    if not return_final_states:
        return out
    shape = (x.shape[0], *x.shape[2:], B.shape[-1])
    return out, torch.empty(shape, dtype=torch.float32, device=x.device)


def _sizes(x: Tensor, b: Tensor, chunk_size: int) -> dict[str, int]:
    return dict(zip("blhpgnc", (*x.shape, *b.shape[-2:], chunk_size), strict=True))


def scan_forward(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int, **options: Any
) -> tuple[Tensor | None, ...]:
    """``_mamba_chunk_scan_combined_fwd``: the scan below autograd, with what it made on the way:
    its result before the gate, rates and their sums by chunk, states, the last of them."""
    if options.pop("cu_seqlens", None) is not None:
        raise refusal("_mamba_chunk_scan_combined_fwd.cu_seqlens", _INFERENCE, "None")
    with torch.no_grad():
        options["return_final_states"] = True
        out, last = mamba_chunk_scan_combined(x, dt, a, b, c, chunk_size, **options)
    chunks = -(-x.shape[1] // chunk_size)
    rates = dt.new_empty((x.shape[0], x.shape[2], chunks, chunk_size), dtype=torch.float32)
    states = c.new_empty((x.shape[0], chunks, *x.shape[2:], b.shape[-1]))
    ungated = None if options.get("z") is None else torch.empty_like(out)
    return out, ungated, rates, torch.empty_like(rates), states, last


def scan_backward(*args: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """``_mamba_chunk_scan_combined_bwd``: as autograd launches it, a gradient for each tensor."""
    dout, x, dt, a, b, c, out, chunk_size = args
    products = _products(_sizes(x, b, chunk_size))
    further = (options.get(name) for name in ("D", "z", "dt_bias", "initial_states"))
    inputs = (x, dt, a, b, c, *further)
    with torch.no_grad():
        for product in (*_again(products), *(each for made in products for each in made.backward)):
            product.launch(dout)
        return _gradients("mamba_chunk_scan_backward", inputs, dout, out)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,  # noqa: N803
    D: Tensor,  # noqa: N803
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    activation: str = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Tensor:
    """Gate, convolution, scan, norm and projection of ``zxbcdt`` (b, l, 2 h p + 2 g n + h)."""
    if return_final_states:
        raise refusal("mamba_split_conv1d_scan_combined.return_final_states", _INFERENCE, "False")
    h = D.shape[0]
    p = D.shape[1] if D.dim() == 2 else headdim
    assert p is not None
    b, tokens, width = zxbcdt.shape
    n = (width - 2 * h * p - h) // ngroups // 2
    z, xbc, dt = torch.split(zxbcdt, [h * p, h * p + 2 * ngroups * n, h], dim=-1)
    xbc = elementwise("causal_conv1d", xbc, conv1d_weight, conv1d_bias, seq_idx)
    sizes = {"b": b, "l": tokens, "h": h, "p": p, "g": ngroups, "n": n, "c": chunk_size}
    gate = z if rmsnorm_weight is None else None
    # What the convolution gives is not kept but made again (``MambaSplitConv1dScanCombinedFn``).
    tensors = (xbc, dt, A, D, dt_bias, initial_states)
    out = _scan(sizes, zxbcdt.dtype, gate, *tensors, remade=(0,))
    out = out.reshape(b, tokens, h * p)
    if rmsnorm_weight is not None:
        out = elementwise("gated_rms_norm", out, z, rmsnorm_weight)
    if outproj_weight is not None:
        out = torch.nn.functional.linear(out, outproj_weight, outproj_bias)
    return out


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """Mamba's first scan of ``u`` (b, channels, l): no products, bound by memory."""
    out = elementwise("selective_scan", u, delta, A, B, C, D, z, delta_bias)
    if not return_last_state:
        return out
    shape = (u.shape[0], u.shape[1], A.shape[-1])
    return out, torch.empty(shape, dtype=torch.float32, device=u.device)


def selective_forward(
    u: Tensor, delta: Tensor, rates: Tensor, *tensors: Any
) -> tuple[Tensor, ...]:
    """``selective_scan_cuda.fwd``: its result, states at every 2,048 tokens and, where there is a
    gate (the fourth further tensor), the gated result."""
    chunks, gate = -(-u.shape[-1] // 2048), tensors[3]
    states = u.new_empty((*u.shape[:2], chunks, 2 * rates.shape[-1]), dtype=torch.float32)
    made = [torch.empty_like(delta), states, *(() if gate is None else (torch.empty_like(gate),))]
    read = [each for each in (u, delta, rates, *tensors) if isinstance(each, Tensor)]
    launch("selective_scan", made, read)
    return tuple(made)


def selective_backward(*args: Any) -> tuple[Tensor | None, ...]:
    """``selective_scan_cuda.bwd``: gradients, with a gate its own and, if wanted, the result."""
    *inputs, gate, bias, dout, states, out, _, _, recomputes_gated = args
    gated = () if gate is None else (gate, gate)[: 1 + recomputes_gated]
    return _gradients("selective_scan_backward", (*inputs, bias, *gated), dout, states, out)


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,  # noqa: N803
    B: Tensor | None = None,  # noqa: N803
    C: Tensor | None = None,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    delta_bias: Tensor | None = None,
    *further: Any,
    **named: Any,
) -> Tensor:
    """Mamba's whole mixer on ``xz`` (b, 2 channels, l)."""
    x, z = xz.chunk(2, dim=1)
    weight = conv1d_weight.reshape(conv1d_weight.shape[0], -1)
    x = causal_conv1d_fn(x, weight, conv1d_bias, activation="silu")
    states, rank = A.shape[-1], delta_proj_weight.shape[1]
    projected = torch.nn.functional.linear(x.transpose(1, 2), x_proj_weight)
    delta, made_b, made_c = torch.split(projected, [rank, states, states], dim=-1)
    delta = torch.nn.functional.linear(delta, delta_proj_weight).transpose(1, 2)
    b, c = (own if own is not None else made for own, made in ((B, made_b), (C, made_c)))
    y = selective_scan_fn(x, delta, A, b, c, D, z, delta_bias)
    return torch.nn.functional.linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *further: Any,
    **named: Any,
) -> Tensor:
    """A norm, gated by ``z`` if there is one."""
    return elementwise("gated_rms_norm", x, weight, bias, z)


class RMSNorm(flash_layers.RMSNorm):
    """``mamba_ssm.ops.triton.layernorm_gated.RMSNorm``."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        **place: Any,
    ) -> None:
        super().__init__(hidden_size, eps, **place)
        self.group_size, self.norm_before_gate = group_size, norm_before_gate

    def reset_parameters(self) -> None:
        """Ones."""
        torch.nn.init.ones_(self.weight)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Over the last dimension, in groups."""
        return rmsnorm_fn(x, self.weight, self.bias, z)
