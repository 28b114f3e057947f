"""``te.pytorch.GroupedLinear``: the experts of one rank, each over its own rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import dtype_name, kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.linear import (
    LinearModule,
    flatten,
    mark_parallel,
    rebuild,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.linear_passes import (
    LinearPlan,
    MainGradient,
    prepare_weight,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    cast_if_needed,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
    get_workspace,
    operands,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    Quantizer,
    takes_any_layout,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)

# Products are launched over so many streams in turn, each with scratch memory of its own.
_STREAMS = 4


def _one_kernel() -> bool:
    """CUTLASS's grouped kernel, which Hopper uses when asked to, instead of many products."""
    asked = os.environ.get("NVTE_USE_CUTLASS_GROUPED_GEMM", "0") == "1"
    return asked and torch.cuda.get_device_capability()[0] == 9


def quantize_groups(
    quantizer: Quantizer, rows: Tensor, splits: Sequence[int], columnwise: bool
) -> list[Operand]:
    """Each group's rows in 8 bits; delayed scaling casts them all in one kernel."""
    if quantizer.recipe != "delayed":
        return [quantizer(part, columnwise=columnwise) for part in rows.split(list(splits))]
    columnwise = columnwise and not takes_any_layout()
    made = kernel("grouped_quantize")(
        rows, list(splits), quantizer.recipe, quantizer.dtype, True, columnwise
    )
    each = len(made) // len(splits)
    return [
        quantizer.arrange(
            (count, rows.shape[-1]), made[index * each : (index + 1) * each], True, columnwise
        )
        for index, count in enumerate(splits)
    ]


def grouped_product(
    left: Sequence[Operand],
    right: Sequence[Operand],
    splits: Sequence[int],
    use: str,
    dtype: torch.dtype,
) -> Tensor:
    """A product for each group, rows below each other."""
    get_workspace(_STREAMS)
    pairs = [operands(one, other, use) for one, other in zip(left, right, strict=True)]
    layout, recipe = pairs[0][2:]
    out: Tensor = kernel("grouped_gemm")(
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
        list(splits),
        layout,
        use,
        dtype_name(dtype),
        _one_kernel(),
        recipe,
    )
    return out


def grouped_weight_gradient(
    gradients: Sequence[Operand],
    inputs: Sequence[Operand],
    out: Sequence[Tensor],
    splits: Sequence[int],
    accumulate: bool,
) -> None:
    """``out[i] (+)= gradients[i]^T inputs[i]``."""
    get_workspace(_STREAMS)
    pairs = [operands(one, other, "wgrad") for one, other in zip(gradients, inputs, strict=True)]
    layout, recipe = pairs[0][2:]
    kernel("grouped_gemm_into")(
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
        list(out),
        list(splits),
        layout,
        "wgrad",
        accumulate,
        _one_kernel(),
        recipe,
    )


class _GroupedLinear(torch.autograd.Function):
    """Keeps the input (its 8-bit copies) and the weights."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, splits: list[int], plan: LinearPlan, *weights: Tensor
    ) -> Tensor:
        rows = cast_if_needed(inputs.reshape(-1, inputs.shape[-1]), plan.dtype)
        needs_wgrad = plan.grad_enabled and weights[0].requires_grad
        lefts: list[Operand]
        if plan.quantizers is None:
            lefts = list(rows.split(splits))
        else:
            lefts = quantize_groups(plan.quantizers.inputs, rows, splits, needs_wgrad)
        rights = [
            prepare_weight(plan, weight, inputs.requires_grad, f"weight{index}")
            for index, weight in enumerate(weights)
        ]
        out = grouped_product(lefts, rights, splits, "forward", plan.dtype)
        if plan.grad_enabled:
            kept = [_for_wgrad(left) for left in lefts] if needs_wgrad else []
            flat: list[Tensor | None] = []
            ctx.forms = []
            for operand in (*kept, *rights):
                tensors, form = flatten(operand)
                flat += tensors
                ctx.forms.append(form)
            ctx.save_for_backward(*flat)
            ctx.main_gradients = [MainGradient(weight, plan.fuse_wgrad) for weight in weights]
            ctx.plan, ctx.splits, ctx.shape = plan, splits, inputs.shape
            ctx.needs = inputs.requires_grad, needs_wgrad
            ctx.weight_shape = weights[0].shape
        return out.view(*inputs.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        plan, splits = ctx.plan, ctx.splits
        needs_dgrad, needs_wgrad = ctx.needs
        tensors = list(ctx.saved_tensors)
        restored = [rebuild(tensors, form) for form in ctx.forms]
        lefts, rights = restored[: -len(splits)], restored[-len(splits) :]
        rows = grad_output.reshape(-1, grad_output.shape[-1]).contiguous()
        gradients: list[Operand]
        if plan.quantizers is None:
            gradients = list(rows.split(splits))
        else:
            gradients = quantize_groups(plan.quantizers.grad_output, rows, splits, needs_wgrad)
        dgrad = None
        if needs_dgrad:
            weights = [
                right if isinstance(right, Tensor) else right.with_columns() for right in rights
            ]
            dgrad = grouped_product(gradients, weights, splits, "dgrad", plan.dtype)
            dgrad = dgrad.view(ctx.shape)
        wgrads: list[Tensor | None] = [None] * len(splits)
        if needs_wgrad:
            wgrads = _weight_gradients(ctx, gradients, lefts, rows)
        if plan.updates_scales:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        return (dgrad, None, None, *wgrads)


def _for_wgrad(left: Operand) -> Operand:
    return left if isinstance(left, Tensor) else left.for_columns()


def _weight_gradients(
    ctx: Any, gradients: Sequence[Operand], lefts: Sequence[Operand], rows: Tensor
) -> list[Tensor | None]:
    plan: LinearPlan = ctx.plan
    splits: list[int] = ctx.splits
    main_gradients: list[MainGradient] = ctx.main_gradients
    targets = [main_gradient.target() for main_gradient in main_gradients]
    out = [
        torch.empty(ctx.weight_shape, dtype=plan.dtype, device=rows.device)
        if target is None
        else target
        for target in targets
    ]
    accumulate = main_gradients[0].accumulates(plan.is_first_microbatch)
    made = [
        None if target is not None else tensor for target, tensor in zip(targets, out, strict=True)
    ]

    def compute() -> tuple[list[Tensor | None], Tensor | None]:
        grouped_weight_gradient(gradients, lefts, out, splits, accumulate)
        return made, None

    if plan.delayed is None:
        compute()
        answers = made
    else:
        plan.delayed.append(compute)
        answers = [None] * len(made)
    return [
        main_gradient.answer(answer)
        for main_gradient, answer in zip(main_gradients, answers, strict=True)
    ]


class GroupedLinear(LinearModule):
    """``te.pytorch.GroupedLinear``: ``weight0``, ``weight1``, ... and no biases."""

    def __init__(
        self,
        num_gemms: int,
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
            others=others,
        )
        if bias:
            raise refusal("GroupedLinear.bias", "experts with biases", "False")
        if parallel_mode is not None and self.tp_size > 1:
            raise refusal("GroupedLinear.parallel_mode", "communication inside of experts", "None")
        self.num_gemms = num_gemms
        initialise = init_method or (lambda tensor: nn.init.normal_(tensor, 0.0, 0.023))
        for index in range(num_gemms):
            shape = (self.out_features, self.in_features)
            weight = torch.empty(shape, dtype=self.dtype, device=device)
            self._add_parameter(f"weight{index}", weight, initialise)
        self.reset_parameters(defer_init=device == "meta")

    def weight_parameters(self) -> list[Tensor]:
        return [getattr(self, f"weight{index}") for index in range(self.num_gemms)]

    def reset_parameters(self, defer_init: bool = False) -> None:
        super().reset_parameters(defer_init)
        if not defer_init:
            for weight in self.weight_parameters():
                mark_parallel(weight, 1 if self.parallel_mode == "row" else 0)
                if self._delayed is not None:
                    weight.skip_backward_post_hook = True

    def forward(
        self, inp: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None
    ) -> Any:
        """Rows of each group through its own weight."""
        weights = self.weight_parameters()
        plan = self.plan(inp, weights[0], is_first_microbatch, self.num_gemms)
        splits = [int(count) for count in m_splits]
        return self.finish(_GroupedLinear.apply(inp, splits, plan, *weights))


class _Pad(torch.autograd.Function):
    """Rows of each group filled up with zeros to a multiple, or (backward) cut again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: list[int], padded: list[int]) -> Tensor:
        ctx.splits, ctx.padded = splits, padded
        out = torch.empty((sum(padded), rows.shape[-1]), dtype=rows.dtype, device=rows.device)
        kernel("pad_rows")(rows, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Unpad.apply(grad, ctx.splits, ctx.padded), None, None


class _Unpad(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: list[int], padded: list[int]) -> Tensor:
        ctx.splits, ctx.padded = splits, padded
        out = torch.empty((sum(splits), rows.shape[-1]), dtype=rows.dtype, device=rows.device)
        kernel("pad_rows")(rows, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Pad.apply(grad, ctx.splits, ctx.padded), None, None


def _aligned(splits: Sequence[int], align_size: int | None) -> list[int]:
    recipe = FP8GlobalStateManager.get_fp8_recipe()
    multiple = align_size or (32 if recipe.kind == "mxfp8" else 16)
    return [-(-count // multiple) * multiple for count in splits]


class Fp8Padding(nn.Module):
    """Fills groups up to the rows 8-bit products take."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, inp: Tensor, m_splits: list[int]) -> tuple[Tensor, list[int]]:
        """The filled rows and their counts."""
        padded = _aligned(m_splits, self.align_size)
        if padded == list(m_splits):
            return inp, m_splits
        return _Pad.apply(inp, list(m_splits), padded), padded


class Fp8Unpadding(nn.Module):
    """Takes away what ``Fp8Padding`` added."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, inp: Tensor, m_splits: list[int]) -> Tensor:
        """The rows that were there before."""
        padded = _aligned(m_splits, self.align_size)
        if padded == list(m_splits):
            return inp
        out: Tensor = _Unpad.apply(inp, list(m_splits), padded)
        return out
