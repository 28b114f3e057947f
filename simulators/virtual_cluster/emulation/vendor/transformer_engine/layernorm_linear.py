"""``te.pytorch.LayerNormLinear``: a norm and the linear layer behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.linear import (
    LinearModule,
    flatten,
    rebuild,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.linear_passes import (
    LinearPlan,
    MainGradient,
    backward,
    forward_product,
    kept_input,
    prepare_weight,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    cast_if_needed,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.norms import (
    NormStatistics,
    mark_norm,
    norm_gradients,
    normalize,
    normalize_quantized,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    Quantized,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)


def normalize_for(
    plan: LinearPlan,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    needs_wgrad: bool,
) -> tuple[Tensor | Quantized, NormStatistics]:
    """The norm's output as the product takes it.

    With delayed scaling the norm writes 8 bits itself, and a transposed copy is made after where
    column use needs one; with current scaling it finds the largest value on the way.
    """
    if plan.quantizers is None:
        return normalize(rows, weight, bias, eps)
    quantizer = plan.quantizers.inputs
    columnwise = needs_wgrad and not (plan.gathers_input and quantizer.gathers_rows_only)
    if quantizer.recipe == "delayed":
        out, statistics = normalize_quantized(
            rows, weight, bias, eps, quantizer.recipe, quantizer.dtype
        )
        made = quantizer.arrange(out.shape, [out], True, False)
        return (made.with_columns() if columnwise else made), statistics
    out, statistics = normalize(rows, weight, bias, eps)
    quantized = quantizer(
        out,
        columnwise=columnwise,
        group=plan.tp_group if plan.gathers_input else None,
        amax_known=True,
    )
    return quantized, statistics


class _LayerNormLinear(torch.autograd.Function):
    """Keeps the input, the statistics, this rank's share of the norm's output, and the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        plan: LinearPlan,
    ) -> Tensor:
        rows = cast_if_needed(inputs.view(-1, inputs.shape[-1]), plan.dtype)
        norm_weight = cast_if_needed(norm_weight, plan.dtype)
        shift = None if norm_bias is None else cast_if_needed(norm_bias, plan.dtype)
        needs_wgrad = plan.grad_enabled and weight.requires_grad
        normed, statistics = normalize_for(plan, rows, norm_weight, shift, eps, needs_wgrad)
        factor = prepare_weight(plan, weight, needs_dgrad=True)
        added = None if bias is None else cast_if_needed(bias, plan.dtype)
        out = forward_product(plan, normed, factor, added)
        if plan.grad_enabled:
            operand = kept_input(plan, normed, rows) if needs_wgrad else None
            kept, ctx.input_form = flatten(operand)
            factors, ctx.weight_form = flatten(factor)
            ctx.save_for_backward(
                *kept,
                *factors,
                rows,
                norm_weight,
                statistics.mean,
                statistics.rsigma,
                weight,
                bias,
            )
            ctx.main_gradient = MainGradient(weight, plan.fuse_wgrad)
            ctx.plan, ctx.shape = plan, inputs.shape
            ctx.needs_bias = bias is not None and bias.requires_grad
        return out.view(-1, *inputs.shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        tensors = list(ctx.saved_tensors)
        normed = rebuild(tensors, ctx.input_form)
        weight = rebuild(tensors, ctx.weight_form)
        rows, norm_weight, mean, rsigma = tensors[:4]
        dgrad, wgrad, bias_grad = backward(
            ctx.plan,
            grad_output,
            normed,
            weight,
            ctx.main_gradient,
            needs_dgrad=True,
            needs_bias=ctx.needs_bias,
        )
        assert dgrad is not None
        grad, norm_grad, shift_grad = norm_gradients(
            dgrad.view(rows.shape), rows, norm_weight, NormStatistics(mean, rsigma)
        )
        if ctx.plan.updates_scales:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        return grad.view(ctx.shape), norm_grad, shift_grad, wgrad, bias_grad, None, None


class LayerNormLinear(LinearModule):
    """``te.pytorch.LayerNormLinear``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Any = None,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            sequence_parallel=sequence_parallel,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            tp_group=tp_group,
            tp_size=tp_size,
            get_rng_state_tracker=get_rng_state_tracker,
            rng_tracker_name=rng_tracker_name,
            bias=bias,
            return_bias=return_bias,
            params_dtype=params_dtype,
            parallel_mode=parallel_mode,
            others={**others, "parameters_split": parameters_split},
        )
        if return_layernorm_output or return_layernorm_output_gathered:
            raise refusal("return_layernorm_output", "the norm's output handed out", "False")
        self.eps, self.normalization = eps, normalization
        self.zero_centered_gamma = zero_centered_gamma
        size = (in_features,)
        start = 0.0 if zero_centered_gamma else 1.0
        norm_weight = torch.empty(size, dtype=self.dtype, device=device)
        self._add_parameter(
            "layer_norm_weight", norm_weight, lambda tensor: nn.init.constant_(tensor, start)
        )
        if normalization == "RMSNorm":
            self.layer_norm_bias = None
        else:
            norm_bias = torch.empty(size, dtype=self.dtype, device=device)
            self._add_parameter("layer_norm_bias", norm_bias, nn.init.zeros_)
        self._add_weights(init_method, device)
        self.reset_parameters(defer_init=device == "meta")

    def reset_parameters(self, defer_init: bool = False) -> None:
        super().reset_parameters(defer_init)
        if not defer_init:
            names = ("layer_norm_weight", "layer_norm_bias")
            mark_norm(self, names, self.sequence_parallel)
            self._mark_parallel()

    def forward(
        self, inp: Tensor, is_first_microbatch: bool | None = None, fp8_grad: bool = False
    ) -> Any:
        """The layer's output (and its bias, with ``return_bias``)."""
        inp = inp.contiguous()
        plan = self.plan(inp, self.weight, is_first_microbatch)
        bias = self.bias if self.apply_bias and not self.gemm_bias_unfused_add else None
        out = _LayerNormLinear.apply(
            inp,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.weight,
            bias,
            self.eps,
            plan,
        )
        return self.finish(out)
