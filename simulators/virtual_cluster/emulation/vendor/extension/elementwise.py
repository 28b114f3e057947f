"""Norms, activations, softmaxes and dropout, with results in few bits where they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor import compiled_kernels
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import dtype_name, kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

from .enumerations import TORCH_TYPES
from .quantized import (
    FUSED,
    bgrad_quantize,
    make,
    plain,
    quantize,
    recipe_of,
    then_quantized,
    written,
)

ACTIVATIONS = (
    *("gelu", "geglu", "qgelu", "qgeglu", "relu", "reglu", "srelu", "sreglu", "silu", "swiglu"),
    *("glu", "clamped_swiglu"),
)


def _normalised(name: str, tensors: tuple[Any, ...], eps: float, out: Any, quantizer: Any) -> Any:
    """A norm's forward kernel, and what makes its result 8-bit.

    With delayed scaling the norm writes 8 bits itself; with current scaling it finds the largest
    value on the way.
    """
    recipe = recipe_of(quantizer)
    if recipe == "delayed":
        eight = dtype_name(TORCH_TYPES[quantizer.dtype])
        made, *stats = kernel(f"{name}_quantize_fwd")(*tensors, eps, recipe, eight)
        if out is None:
            del made
            out = make(quantizer, tensors[0].shape, tensors[0].dtype)
        if len(written(out)) > 1:
            kernel("fp8_transpose")(plain(out))
        return [out, *stats]
    made, *stats = kernel(f"{name}_fwd")(*tensors, eps)
    if recipe:
        made = quantize(made, quantizer, out, has_amax=recipe == "current")
    return [made if out is None else out, *stats]


def layernorm_fwd(
    input: Tensor,
    weight: Any,
    bias: Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    *rest: Any,
) -> Any:
    """The output, means, reciprocal deviations."""
    return _normalised("layer_norm", (input, plain(weight), bias), eps, ln_out, quantizer)


def rmsnorm_fwd(
    input: Tensor, weight: Any, eps: float, ln_out: Any, quantizer: Any, *rest: Any
) -> Any:
    """The output, None, reciprocal deviations."""
    out, rsigma = _normalised("rms_norm", (input, plain(weight)), eps, ln_out, quantizer)
    return [out, None, rsigma]


def layernorm_bwd(
    dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Any, *rest: Any
) -> list[Tensor]:
    return list(kernel("layer_norm_bwd")(dz.contiguous(), x, plain(gamma), mu, rsigma))


def rmsnorm_bwd(dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Any, *rest: Any) -> list[Tensor]:
    return list(kernel("rms_norm_bwd")(dz.contiguous(), x, plain(gamma), rsigma))


def rmsnorm_bwd_add(
    dz: Tensor, x: Tensor, add: Tensor, rsigma: Tensor, gamma: Any, *rest: Any
) -> list[Tensor]:
    """The gradients, another one added to that of the input."""
    made = [torch.empty_like(x), torch.empty_like(plain(gamma))]
    launch("rmsnorm_bwd_add", made, [dz, x, add, rsigma, plain(gamma)])
    return made


def _forward(name: str) -> Callable[..., Any]:
    known = name.replace("clamped_", "").replace("glu", "geglu", int(name == "glu"))

    def function(input: Tensor, quantizer: Any = None, *rest: Any, **options: Any) -> Any:
        width = input.shape[-1] // (2 if name.endswith("glu") else 1)
        shape = (*input.shape[:-1], width)
        return then_quantized(
            quantizer, shape, [input], lambda: kernel("activation_fwd")(input, known)
        )

    return function


def _backward(name: str) -> Callable[..., Any]:
    known = name.replace("clamped_", "").replace("glu", "geglu", int(name == "glu"))

    def function(
        grad: Tensor, fwd_input: Tensor, quantizer: Any = None, *rest: Any, **options: Any
    ) -> Any:
        return then_quantized(
            quantizer,
            fwd_input.shape,
            [grad, fwd_input],
            lambda: kernel("activation_bwd")(grad, fwd_input, known),
        )

    return function


def _backward_with_bias(name: str) -> Callable[..., Any]:
    def function(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
        if recipe_of(quantizer) not in FUSED:
            return list(bgrad_quantize(kernel("activation_bwd")(grad, fwd_input, name), quantizer))
        out = make(quantizer, fwd_input.shape, grad.dtype)
        bias_grad = torch.empty(fwd_input.shape[-1], dtype=grad.dtype, device="cuda")
        launch("activation_bias_grad_and_cast", [bias_grad, *written(out)], [grad, fwd_input])
        return [bias_grad, out]

    return function


def activation_functions() -> dict[str, Callable[..., Any]]:
    """``gelu``, its gradient ``dgelu``, ``dbias_dgelu``, and so on."""
    made: dict[str, Callable[..., Any]] = {}
    for name in ACTIVATIONS:
        backward = f"clamped_d{name[8:]}" if name.startswith("clamped_") else f"d{name}"
        made[name], made[backward] = _forward(name), _backward(name)
        made[f"dbias_{backward}"] = _backward_with_bias(name)
    return made


def softmax_functions() -> dict[str, Callable[..., Any]]:
    """Megatron's scaled softmaxes under the names that they have here."""
    made: dict[str, Callable[..., Any]] = {}
    for name, kind in (
        ("scaled_softmax", "plain_softmax"),
        ("scaled_masked_softmax", "masked_softmax"),
        ("scaled_upper_triang_masked_softmax", "causal_softmax"),
        ("scaled_aligned_causal_masked_softmax", "causal_softmax"),
    ):
        made[f"{name}_forward"] = getattr(compiled_kernels, kind)
        made[f"{name}_backward"] = getattr(compiled_kernels, f"{kind}_backward")
    return made


def dropout_fwd(input: Any, dropout_probability: float, out: Tensor | None = None) -> list[Tensor]:
    """The output and a mask of one bit an element."""
    source = plain(input)
    made = torch.empty(input.shape, dtype=input.dtype, device="cuda") if out is None else out
    mask = torch.empty(-(-source.numel() // 8), dtype=torch.uint8, device="cuda")
    launch("dropout", [made, mask], [source])
    return [made, mask]


def dropout_bwd(
    grad_output: Tensor, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None
) -> Tensor:
    made = torch.empty_like(grad_output) if grad_input is None else grad_input
    launch("dropout_backward", [made], [grad_output, mask])
    return made
