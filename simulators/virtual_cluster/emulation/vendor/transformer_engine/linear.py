"""``te.pytorch.Linear``: a linear layer, whole or sharded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.linear_passes import (
    LinearPlan,
    MainGradient,
    backward,
    forward_product,
    kept_input,
    prepare_weight,
    quantize_input,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    TransformerEngineBaseModule,
    activation_dtype,
    cast_if_needed,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    PER_TENSOR,
    Quantized,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.userbuffers import (
    Overlap,
)


def flatten(operand: Tensor | Quantized | None) -> tuple[list[Tensor | None], Any]:
    """Tensors of an operand for autograd to keep, and how to put them together again."""
    if isinstance(operand, Quantized):
        return list(operand.tensors()), operand.emptied()
    return [operand], None


def rebuild(tensors: list[Tensor | None], form: Any) -> Any:
    """The operand ``flatten`` took apart; takes its tensors off the front of the list."""
    if isinstance(form, Quantized):
        taken, tensors[:4] = tensors[:4], []
        return form.filled(taken)
    return tensors.pop(0)


class _Linear(torch.autograd.Function):
    """Keeps this rank's share of the input and the weight (its 8-bit copy too)."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, plan: LinearPlan
    ) -> Tensor:
        rows = inputs.view(-1, inputs.shape[-1])
        needs_dgrad, needs_wgrad = inputs.requires_grad, weight.requires_grad
        operand: Tensor | Quantized
        if plan.quantizers is None:
            rows = operand = cast_if_needed(rows, plan.dtype)
        else:
            operand = quantize_input(plan, rows, plan.grad_enabled and needs_wgrad)
        factor = prepare_weight(plan, weight, needs_dgrad)
        added = None if bias is None else cast_if_needed(bias, plan.dtype)
        out = forward_product(plan, operand, factor, added)
        if plan.grad_enabled:
            kept, ctx.input_form = flatten(
                kept_input(plan, operand, rows) if needs_wgrad else None
            )
            factors, ctx.weight_form = flatten(factor)
            ctx.save_for_backward(*kept, *factors, weight, bias)
            ctx.main_gradient = MainGradient(weight, plan.fuse_wgrad)
            ctx.plan, ctx.shape = plan, inputs.shape
            ctx.needs = needs_dgrad, bias is not None and bias.requires_grad
        return out.view(-1, *inputs.shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        tensors = list(ctx.saved_tensors)
        inputs = rebuild(tensors, ctx.input_form)
        weight = rebuild(tensors, ctx.weight_form)
        needs_dgrad, needs_bias = ctx.needs
        dgrad, wgrad, bias_grad = backward(
            ctx.plan,
            grad_output,
            inputs,
            weight,
            ctx.main_gradient,
            needs_dgrad=needs_dgrad,
            needs_bias=needs_bias,
        )
        if ctx.plan.updates_scales:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        return (None if dgrad is None else dgrad.view(ctx.shape)), wgrad, bias_grad, None


class LinearModule(TransformerEngineBaseModule):
    """Weight and bias of a linear layer, and how its calls run."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sequence_parallel: bool,
        fuse_wgrad_accumulation: bool,
        tp_group: Any,
        tp_size: int,
        get_rng_state_tracker: Callable[[], Any] | None,
        rng_tracker_name: str | None,
        bias: bool,
        return_bias: bool,
        params_dtype: torch.dtype | None,
        parallel_mode: str | None,
        others: dict[str, Any],
    ) -> None:
        super().__init__()
        self._refuse_others(others)
        self.dtype = params_dtype or torch.get_default_dtype()
        self.in_features, self.out_features = in_features, out_features
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.get_rng_state_tracker = get_rng_state_tracker
        self.rng_tracker_name = rng_tracker_name
        self.ub_name = others.get("ub_name")
        self.save_original_input = bool(others.get("save_original_input", False))
        if others.get("delay_wgrad_compute"):
            self._delayed = deque()
        self._join_group(tp_group, tp_size)
        self.parallel_mode = parallel_mode
        if parallel_mode == "column":
            self.out_features //= self.tp_size
        elif parallel_mode == "row":
            self.in_features //= self.tp_size
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.overlap = Overlap.of(others, parallel_mode, self.sequence_parallel)
        # A sum over ranks comes before the bias, which then is an addition of its own.
        self.gemm_bias_unfused_add = parallel_mode == "row" and self.apply_bias

    @staticmethod
    def _refuse_others(others: dict[str, Any]) -> None:
        if others.get("symmetric_ar_type") is not None:
            raise refusal("symmetric_ar_type", "all-reduce over symmetric memory", "None")
        if others.get("parameters_split") is not None:
            raise refusal("parameters_split", "weights registered in parts", "None")

    def _add_weights(self, init_method: Callable[[Tensor], Any] | None, device: Any) -> None:
        shape = (self.out_features, self.in_features)
        initialise = init_method or (lambda tensor: nn.init.normal_(tensor, 0.0, 0.023))
        weight = torch.empty(shape, dtype=self.dtype, device=device)
        self._add_parameter("weight", weight, initialise)
        if self.use_bias:
            bias = torch.empty(self.out_features, dtype=self.dtype, device=device)
            self._add_parameter("bias", bias, nn.init.zeros_)
        else:
            self.bias = torch.empty(0, dtype=self.dtype, device=device)

    def _mark_parallel(self) -> None:
        """Attributes frameworks know sharded parameters by, and those whose gradients wait."""
        if self._delayed is not None:
            for parameter in self.weight_parameters() + ([self.bias] if self.use_bias else []):
                parameter.skip_backward_post_hook = True
        mark_parallel(self.weight, 1 if self.parallel_mode == "row" else 0)
        if self.use_bias and self.parallel_mode == "row":
            self.bias.sequence_parallel = self.sequence_parallel
        elif self.use_bias and self.parallel_mode == "column":
            mark_parallel(self.bias, 0)

    def plan(
        self,
        inputs: Tensor,
        weight: Tensor,
        is_first_microbatch: bool | None,
        num_gemms: int = 1,
    ) -> LinearPlan:
        """How this call runs."""
        self.init_fp8_metadata(num_gemms)
        if self.fp8 and self.overlap.is_on and self.fp8_meta["recipe"].kind not in PER_TENSOR:
            raise refusal("tp_comm_overlap", "user buffers for blocks of scales", "False")
        grad_enabled = torch.is_grad_enabled()
        trains = grad_enabled and (inputs.requires_grad or weight.requires_grad)
        return LinearPlan(
            parallel_mode=self.parallel_mode,
            sequence_parallel=self.sequence_parallel,
            tp_group=self.tp_group,
            tp_size=self.tp_size,
            dtype=activation_dtype(inputs),
            quantizers=self.quantizers(),
            weight_cache=self._fp8_workspaces,
            is_first_microbatch=is_first_microbatch,
            fuse_wgrad=self.fuse_wgrad_accumulation,
            save_original_input=self.save_original_input,
            grad_enabled=grad_enabled,
            updates_scales=self.fp8 and trains and FP8GlobalStateManager.is_first_fp8_module(),
            delayed=self._delayed,
            overlap=self.overlap,
        )

    def finish(self, out: Tensor) -> Any:
        """Add or hand out the bias."""
        self.end_forward()
        if self.gemm_bias_unfused_add:
            out = out + cast_if_needed(self.bias, out.dtype)
        if self.return_bias:
            return out, cast_if_needed(self.bias, out.dtype)
        return out


def mark_parallel(tensor: Tensor, dimension: int) -> None:
    tensor.tensor_model_parallel = True
    tensor.partition_dim = dimension
    tensor.partition_stride = 1


class Linear(LinearModule):
    """``te.pytorch.Linear``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Any = None,
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
        self._add_weights(init_method, device)
        self.reset_parameters(defer_init=device == "meta")

    def reset_parameters(self, defer_init: bool = False) -> None:
        super().reset_parameters(defer_init)
        if not defer_init:
            self._mark_parallel()

    def forward(
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        """The layer's output (and its bias, with ``return_bias``)."""
        if fp8_output or fp8_grad:
            raise refusal("Linear.fp8_output", "outputs handed on in 8 bits", "False")
        inp = inp.contiguous()
        bias = self.bias if self.apply_bias and not self.gemm_bias_unfused_add else None
        plan = self.plan(inp, self.weight, is_first_microbatch)
        return self.finish(_Linear.apply(inp, self.weight, bias, plan))
