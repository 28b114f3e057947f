"""``te.pytorch.Linear`` and the layers that have a norm in front, whole or sharded.

Column-parallel layers gather their input, under sequence parallelism, and gather it again beside
the input-gradient product of the backward pass; the input gradient is reduced beside the
weight-gradient product. Row-parallel layers reduce their output and gather the output gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.elementwise import (
    layernorm_bwd,
    layernorm_fwd,
    rmsnorm_bwd,
    rmsnorm_fwd,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.extension.enumerations import (
    CommOverlapType,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.extension.quantized import (
    bgrad_quantize,
    quantize,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.activations import (
    GATED,
    activate,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.collectives import (
    Pending,
    gather,
    start_gather,
    start_reduce,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    Call,
    LinearModule,
    MainGradient,
    cast_if_needed,
    mark_norm,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
    product,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    QuantizedStorage,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.userbuffers import (
    buffer_of,
)


@differentiable
def _linear(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    eps: float,
    call: Call,
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Keeps this rank's share of the input and the weight (its 8-bit copy too); with a norm in
    front the norm's input and statistics too."""
    rows = inputs.view(-1, inputs.shape[-1])
    needs_wgrad = call.grad_enabled and weight.requires_grad
    needs_dgrad = inputs.requires_grad or norm_weight is not None
    needs_bias = bias is not None and bias.requires_grad
    if call.recipe is None or norm_weight is not None:
        rows = cast_if_needed(rows, call.dtype)
    quantizer = call.input_quantizer(needs_wgrad, normed=norm_weight is not None)
    norm: list[Any] = []
    operand: Operand
    if norm_weight is None:
        operand = rows if quantizer is None else quantize(rows, quantizer)
    else:
        norm_weight = cast_if_needed(norm_weight, call.dtype)
        if norm_bias is None:
            operand, mean, rsigma = rmsnorm_fwd(rows, norm_weight, eps, None, quantizer)
        else:
            norm_bias = cast_if_needed(norm_bias, call.dtype)
            given = (rows, norm_weight, norm_bias, eps, None, quantizer)
            operand, mean, rsigma = layernorm_fwd(*given)
        norm = [rows, norm_weight, mean, rsigma]
    factor = call.weight(weight, needs_dgrad)
    added = None if bias is None else cast_if_needed(bias, call.dtype)
    out = _forward(call, operand, factor, added)
    out = out.view(-1, *inputs.shape[1:-1], out.shape[-1])
    main = MainGradient(weight, call.layer.fuse_wgrad_accumulation)
    shape = inputs.shape

    def gradient(kept: Any, factor: Any, _: Any, __: Any, *rest: Any) -> tuple[Tensor | None, ...]:
        *norm, grad_output = rest
        dgrad, wgrad, bias_grad = _backward(
            call, grad_output, kept, factor, main, needs_dgrad, needs_bias
        )
        norm_grads: list[Any] = [None, None]
        if norm:
            rows, norm_weight, mean, rsigma = norm
            assert dgrad is not None
            dgrad = dgrad.view(rows.shape)
            if mean is None:
                dgrad, *norm_grads = rmsnorm_bwd(dgrad, rows, rsigma, norm_weight)
            else:
                dgrad, *norm_grads = layernorm_bwd(dgrad, rows, mean, rsigma, norm_weight)
        call.end_backward()
        dgrad = None if dgrad is None else dgrad.view(shape)
        return dgrad, wgrad, bias_grad, *norm_grads

    if not call.grad_enabled:
        return out, [], gradient
    share = _kept_input(call, operand, rows) if needs_wgrad else None
    return out, [share, factor, weight, bias, *norm], gradient


def _forward(call: Call, share: Operand, factor: Operand, bias: Tensor | None) -> Tensor:
    """Gather, multiply, reduce: the layer's output from its share of the input."""
    layer = call.layer
    if layer.gathers_input and "forward" not in layer.overlaps:
        rows = share.for_rows() if isinstance(share, QuantizedStorage) else share
        share = gather(rows, layer.tp_group)
    pending, _ = _multiply(call, "forward", share, factor, bias)
    out: Tensor = pending.wait()
    return out


def _multiply(
    call: Call, use: str, rows: Operand, factor: Operand, bias: Tensor | None = None
) -> tuple[Pending, Operand]:
    """The product, summed over ranks where it has to be, and the rows that were multiplied:
    those that go around in user buffers are gathered on the way."""
    layer = call.layer
    cut = layer.overlaps.get(use)
    reduces = layer.parallel_mode == ("row" if use == "forward" else "column")
    if cut is None:
        out, _ = product(use, rows, factor, call.dtype, bias=bias)
        if not reduces or layer.tp_size == 1:
            return Pending(None, lambda: out), rows
        beside = use != "forward"
        pending = start_reduce(out, layer.tp_group, layer.sequence_parallel, asynchronous=beside)
        return pending, rows
    buffer = buffer_of(layer.ub_name, use, call.recipe is not None, layer.tp_group)
    given: dict[str, Any] = {"comm_overlap": buffer, "comm_type": cut}
    count = rows.shape[0]
    if cut is CommOverlapType.AG:
        quantizer = rows.quantizer if isinstance(rows, QuantizedStorage) else None
        buffer.copy_into_buffer(rows, True)
        shape = (count * layer.tp_size, *rows.shape[1:])
        rows = buffer.get_buffer(False, shape, quantizer)
        out, _ = product(use, rows, factor, call.dtype, **given)
        return Pending(None, lambda: out), rows
    width = factor.shape[0 if use == "forward" else 1]
    share = torch.empty((count // layer.tp_size, width), dtype=call.dtype, device="cuda")
    whole = buffer.get_buffer(False, (count, width))
    product(use, rows, factor, call.dtype, whole, **given, extra_output=share)
    return Pending(None, lambda: share), rows


def _kept_input(call: Call, inputs: Operand, original: Tensor) -> Operand:
    """What of the input the backward pass needs."""
    if call.layer.save_original_input:
        return original
    if isinstance(inputs, QuantizedStorage):
        return inputs.for_rows() if call.gathers_rows else inputs.for_columns()
    return inputs


def _prepare_gradient(
    call: Call, grad_output: Tensor, with_bias: bool, needs_wgrad: bool
) -> tuple[Operand, Tensor | None]:
    """The output gradient as products take it, gathered but for user buffers, and the bias
    gradient if made here."""
    layer = call.layer
    gathers = layer.gathers_gradient and layer.overlaps.get("dgrad") is None
    rows = grad_output.reshape(-1, grad_output.shape[-1]).contiguous()
    if call.recipe is None:
        return (gather(rows, layer.tp_group) if gathers else rows), None
    bias_grad = None
    if layer.gathers_gradient:
        bias_grad = rows.sum(dim=0) if with_bias else None
        quantizer = call.quantizer("grad", not call.one_scale, group=layer.tp_group)
        share = quantize(rows, quantizer)
        if not gathers:
            return share, bias_grad
        whole = gather(share, layer.tp_group)
        return (whole.with_columns() if needs_wgrad else whole), bias_grad
    quantizer = call.quantizer("grad", needs_wgrad)
    if with_bias:
        bias_grad, made = bgrad_quantize(rows, quantizer)
        return made, bias_grad
    return quantize(rows, quantizer), None


def _start_input(call: Call, inputs: Operand) -> Pending:
    """Start gathering the input for the weight gradient."""
    layer = call.layer
    if call.recipe is not None and isinstance(inputs, Tensor):
        inputs = quantize(inputs, call.late_input_quantizer())
    if not layer.gathers_input:
        return Pending(None, lambda: inputs)
    return start_gather(inputs, layer.tp_group, asynchronous=True)


def _backward(
    call: Call,
    grad_output: Tensor,
    inputs: Operand | None,
    weight: Operand,
    main: MainGradient,
    needs_dgrad: bool,
    needs_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias; ``inputs`` None: no weight gradient."""
    layer = call.layer
    gradient, bias_grad = _prepare_gradient(call, grad_output, needs_bias, inputs is not None)
    coming = None if inputs is None else _start_input(call, inputs)
    dgrad: Pending | None = None
    if needs_dgrad or layer.overlaps.get("dgrad") is not None:
        if isinstance(weight, QuantizedStorage):
            weight = weight.with_columns()
        dgrad, gradient = _multiply(call, "dgrad", gradient, weight)
        if isinstance(gradient, QuantizedStorage) and inputs is not None:
            gradient = gradient.with_columns()
    wgrad = None
    if coming is not None:
        whole = coming.wait()
        if isinstance(whole, QuantizedStorage):
            whole = whole.with_columns()
        sums = needs_bias and bias_grad is None and call.recipe is None
        compute = partial(_weight_gradient, call, gradient, whole, main, sums)
        if layer.delayed is None:
            (wgrad,), fused_bias_grad = compute()
            bias_grad = fused_bias_grad if bias_grad is None else bias_grad
        else:
            layer.delayed.append(compute)
        wgrad = main.answer(wgrad)
        del whole, compute
    return (None if dgrad is None else dgrad.wait()), wgrad, bias_grad


def _weight_gradient(
    call: Call, gradient: Operand, inputs: Operand, main: MainGradient, sums: bool
) -> tuple[list[Tensor | None], Tensor | None]:
    """The weight's gradient (None: it went into the main gradient), and the bias's if asked."""
    out = main.target()
    bias = torch.empty(0, dtype=call.dtype, device="cuda") if sums else None
    accumulate = main.accumulates(call.is_first_microbatch)
    given = (gradient, inputs, call.dtype, out)
    made, bias_grad = product("wgrad", *given, bias=bias, accumulate=accumulate)
    return [None if out is not None else made], bias_grad


class Linear(LinearModule):
    """``te.pytorch.Linear``."""

    def forward(
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        """The layer's output (and its bias, with ``return_bias``)."""
        if fp8_output:
            raise refusal("Linear.fp8_output", "outputs handed on in 8 bits", "False")
        inp = inp.contiguous()
        call = self.call(inp, self.weight, is_first_microbatch)
        bias = self.bias if self.apply_bias and not self.gemm_bias_unfused_add else None
        out = _linear(inp, self.weight, bias, *self.norm(), call)
        self.end_forward()
        if self.gemm_bias_unfused_add:
            out = out + cast_if_needed(self.bias, out.dtype)
        return (out, cast_if_needed(self.bias, out.dtype)) if self.return_bias else out

    def norm(self) -> tuple[Any, ...]:
        """Weight, bias and epsilon of the norm in front: none."""
        return None, None, 0.0


class LayerNormLinear(Linear):
    """``te.pytorch.LayerNormLinear``: a norm and the linear layer behind it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        **options: Any,
    ) -> None:
        if return_layernorm_output or return_layernorm_output_gathered:
            raise refusal("return_layernorm_output", "the norm's output handed out", "False")
        self.eps, self.normalization = eps, normalization
        self.zero_centered_gamma = zero_centered_gamma
        super().__init__(in_features, out_features, **options)

    def add_parameters(self, init_method: Any, device: Any) -> None:
        start = 0.0 if self.zero_centered_gamma else 1.0
        size = (self.in_features,)
        self.add_parameter(
            "layer_norm_weight", size, device, partial(nn.init.constant_, val=start)
        )
        if self.normalization == "RMSNorm":
            self.layer_norm_bias = None
        else:
            self.add_parameter("layer_norm_bias", size, device, nn.init.zeros_)
        super().add_parameters(init_method, device)

    def mark(self) -> None:
        mark_norm(self, ("layer_norm_weight", "layer_norm_bias"), self.sequence_parallel)
        super().mark()

    def norm(self) -> tuple[Any, ...]:
        return self.layer_norm_weight, self.layer_norm_bias, self.eps


class LayerNormMLP(nn.Module):
    """``te.pytorch.LayerNormMLP``, run as its parts, its parameters named as there.

    The kernels and the tensors kept are theirs. In 8 bits the library lets the activation's kernel
    write them, which here is a cast of its own.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        *,
        init_method: Any = None,
        output_layer_init_method: Any = None,
        return_bias: bool = False,
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        set_parallel_mode: bool = False,
        **common: Any,
    ) -> None:
        super().__init__()
        self.activation = activation
        width = ffn_hidden_size * (2 if activation in GATED else 1)
        modes = ("column", "row") if set_parallel_mode else (None, None)
        self._parts = (
            LayerNormLinear(
                hidden_size,
                width,
                eps,
                normalization=normalization,
                zero_centered_gamma=zero_centered_gamma,
                init_method=init_method,
                parallel_mode=modes[0],
                **common,
            ),
            Linear(
                ffn_hidden_size,
                hidden_size,
                init_method=output_layer_init_method,
                return_bias=return_bias,
                parallel_mode=modes[1],
                **common,
            ),
        )
        for part, name, shown in self._names():
            self.register_parameter(shown, getattr(part, name))

    def _names(self) -> list[tuple[nn.Module, str, str]]:
        """Parameters of the parts, and how they are called here."""
        return [
            (part, name, name if name.startswith("layer_norm") else f"{prefix}{name}")
            for prefix, part in zip(("fc1_", "fc2_"), self._parts, strict=True)
            for name, _ in part.named_parameters()
        ]

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Any:
        """The output of the second layer (and its bias, with ``return_bias``)."""
        first, second = self._parts
        # Parameters may have been moved or replaced since: the parts follow.
        for part, name, shown in self._names():
            part.register_parameter(name, getattr(self, shown))
        inner = first(inp, is_first_microbatch=is_first_microbatch)
        return second(activate(inner, self.activation), is_first_microbatch=is_first_microbatch)
