"""``te.pytorch.GroupedLinear``: the experts of one rank, each over its own rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.experts import pad_rows
from trainscout.simulators.virtual_cluster.emulation.vendor.extension.quantized import (
    split_quantize,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    Call,
    LinearModule,
    MainGradient,
    cast_if_needed,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
    grouped_product,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)


@differentiable
def _grouped_linear(
    inputs: Tensor, splits: list[int], call: Call, *weights: Tensor
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Keeps the input (its 8-bit copies) and the weights."""
    rows = cast_if_needed(inputs.reshape(-1, inputs.shape[-1]), call.dtype)
    needs_dgrad = inputs.requires_grad
    needs_wgrad = call.grad_enabled and weights[0].requires_grad
    lefts = _split(call, "input", rows, splits, needs_wgrad)
    rights = [
        call.weight(weight, needs_dgrad, f"weight{index}") for index, weight in enumerate(weights)
    ]
    width = weights[0].shape[0]
    out = torch.empty((rows.shape[0], width), dtype=call.dtype, device="cuda")
    grouped_product("forward", lefts, rights, [out], splits)
    mains = [MainGradient(weight, call.layer.fuse_wgrad_accumulation) for weight in weights]
    shape, weight_shape, count = inputs.shape, weights[0].shape, len(splits)

    def gradient(*kept: Any) -> tuple[Tensor | None, ...]:
        operands, rights, grad_output = kept[: -1 - count], kept[-1 - count : -1], kept[-1]
        rows = grad_output.reshape(-1, grad_output.shape[-1]).contiguous()
        gradients = _split(call, "grad", rows, splits, needs_wgrad)
        dgrad = None
        if needs_dgrad:
            turned = [
                right if isinstance(right, Tensor) else right.with_columns() for right in rights
            ]
            dgrad = torch.empty(shape, dtype=call.dtype, device="cuda")
            grouped_product("dgrad", gradients, turned, [dgrad.view(-1, shape[-1])], splits)
        wgrads: list[Tensor | None] = [None] * count
        if needs_wgrad:
            wgrads = _weight_gradients(call, gradients, operands, mains, splits, weight_shape)
        call.end_backward()
        return (dgrad, None, None, *wgrads)

    kept = [left if isinstance(left, Tensor) else left.for_columns() for left in lefts]
    keeps = [*(kept if needs_wgrad else []), *rights] if call.grad_enabled else []
    return out.view(*inputs.shape[:-1], width), keeps, gradient


def _split(
    call: Call, role: str, rows: Tensor, splits: list[int], columnwise: bool
) -> list[Operand]:
    """The rows of each group, in 8 bits inside of an 8-bit region."""
    if call.recipe is None:
        return list(rows.split(splits))
    return split_quantize(rows, splits, [call.quantizer(role, columnwise)] * len(splits))


def _weight_gradients(
    call: Call,
    gradients: Sequence[Operand],
    inputs: Sequence[Operand],
    mains: Sequence[MainGradient],
    splits: list[int],
    shape: torch.Size,
) -> list[Tensor | None]:
    targets = [main.target() for main in mains]
    out = [
        torch.empty(shape, dtype=call.dtype, device="cuda") if target is None else target
        for target in targets
    ]
    accumulate = mains[0].accumulates(call.is_first_microbatch)
    made = [
        None if target is not None else each for target, each in zip(targets, out, strict=True)
    ]

    def compute() -> tuple[list[Tensor | None], Tensor | None]:
        grouped_product("wgrad", gradients, inputs, out, splits, accumulate)
        return made, None

    answers = made
    if call.layer.delayed is None:
        compute()
    else:
        call.layer.delayed.append(compute)
        answers = [None] * len(made)
    return [main.answer(answer) for main, answer in zip(mains, answers, strict=True)]


class GroupedLinear(LinearModule):
    """``te.pytorch.GroupedLinear``: ``weight0``, ``weight1``, ... and no biases."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        **options: Any,
    ) -> None:
        self.num_gemms = num_gemms
        if bias:
            raise refusal("GroupedLinear.bias", "experts with biases", "False")
        super().__init__(in_features, out_features, bias=False, **options)
        if self.parallel_mode is not None and self.tp_size > 1:
            raise refusal("GroupedLinear.parallel_mode", "communication inside of experts", "None")

    def weight_names(self) -> tuple[str, ...]:
        return tuple(f"weight{index}" for index in range(self.num_gemms))

    def forward(
        self, inp: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None
    ) -> Any:
        """Rows of each group through its own weight."""
        weights = [getattr(self, name) for name in self.weight_names()]
        call = self.call(inp, weights[0], is_first_microbatch, self.num_gemms)
        out = _grouped_linear(inp, [int(count) for count in m_splits], call, *weights)
        self.end_forward()
        return (out, cast_if_needed(self.bias, out.dtype)) if self.return_bias else out


@differentiable
def _pad(rows: Tensor, before: int, after: int) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Rows of each group filled up with zeros to a multiple, or cut again."""
    out = torch.empty((after, rows.shape[-1]), dtype=rows.dtype, device=rows.device)
    pad_rows(rows, out)
    return out, [], lambda grad: _pad(grad, after, before)


class Fp8Padding(nn.Module):
    """Fills groups up to the rows 8-bit products take."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def padded(self, splits: Sequence[int]) -> list[int]:
        """Rows of each group with those that fill them up."""
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        multiple = self.align_size or (32 if recipe.kind == "mxfp8" else 16)
        return [-(-count // multiple) * multiple for count in splits]

    def forward(self, inp: Tensor, m_splits: list[int]) -> tuple[Tensor, list[int]]:
        """The filled rows and their counts."""
        padded = self.padded(m_splits)
        if padded == list(m_splits):
            return inp, m_splits
        return _pad(inp, sum(m_splits), sum(padded)), padded


class Fp8Unpadding(Fp8Padding):
    """Takes away what ``Fp8Padding`` added."""

    def forward(self, inp: Tensor, m_splits: list[int]) -> Tensor:
        """The rows that were there before."""
        padded = self.padded(m_splits)
        if padded == list(m_splits):
            return inp
        out: Tensor = _pad(inp, sum(padded), sum(m_splits))
        return out
