"""Forward and backward of a linear layer sharded over tensor-parallel ranks.

Column-parallel layers gather their input, under sequence parallelism, and gather it again beside
the input-gradient product of the backward pass; the input gradient is reduced beside the
weight-gradient product. Row-parallel layers reduce their output and gather the output gradient.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.collectives import (
    Pending,
    gather,
    start_all_reduce,
    start_gather,
    start_reduce_scatter,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    LinearQuantizers,
    cast_if_needed,
    get_dummy_wgrad,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
    product,
    weight_gradient,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    Quantized,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.userbuffers import (
    Overlap,
    multiply_gathered,
    multiply_scattered,
)

# Computes gradients of a module's weights (None: they went into the main gradients) and bias.
DelayedGradient: TypeAlias = Callable[[], tuple[list[Tensor | None], Tensor | None]]


@dataclass
class LinearPlan:
    """How one call of a linear layer runs; everything but its tensors.

    ``weight_cache`` keeps the 8-bit weight between micro-batches when ``is_first_microbatch`` is
    given. ``updates_scales``: this backward pass is the last of an 8-bit region. ``delayed`` takes
    weight gradients that are computed later, as functions that return them.
    """

    parallel_mode: str | None
    sequence_parallel: bool
    tp_group: Any
    tp_size: int
    dtype: torch.dtype
    quantizers: LinearQuantizers | None
    weight_cache: dict[str, Quantized]
    is_first_microbatch: bool | None
    fuse_wgrad: bool
    save_original_input: bool
    grad_enabled: bool
    updates_scales: bool
    delayed: deque[DelayedGradient] | None
    overlap: Overlap

    @property
    def gathers_input(self) -> bool:
        return self.parallel_mode == "column" and self.sequence_parallel

    @property
    def gathers_gradient(self) -> bool:
        return self.parallel_mode == "row" and self.sequence_parallel


def quantize_input(plan: LinearPlan, inputs: Tensor, needs_wgrad: bool) -> Quantized:
    """A layer's share of the input in 8 bits, for the uses this rank makes of it."""
    assert plan.quantizers is not None
    quantizer = plan.quantizers.inputs
    kept = needs_wgrad and not plan.save_original_input
    columnwise = kept and not (plan.gathers_input and quantizer.gathers_rows_only)
    group = plan.tp_group if plan.gathers_input else None
    return quantizer(inputs, columnwise=columnwise, group=group)


def prepare_weight(
    plan: LinearPlan, weight: Tensor, needs_dgrad: bool, name: str = "weight"
) -> Operand:
    """The weight in the type products take; 8-bit ones are made once a step when cached."""
    if plan.quantizers is None:
        return cast_if_needed(weight, plan.dtype)
    quantizer = plan.quantizers.weight
    columnwise = (plan.grad_enabled and needs_dgrad) or FP8GlobalStateManager.will_recompute()
    if plan.is_first_microbatch is None:
        return quantizer(weight, columnwise=columnwise)
    cached = plan.weight_cache.get(name)
    if cached is not None and columnwise and cached.must_be_made_again:
        cached = None
    if cached is None:
        cached = plan.weight_cache[name] = quantizer(weight, columnwise=columnwise)
    elif plan.is_first_microbatch:
        quantizer.update(weight, cached)
    return cached


def forward_product(
    plan: LinearPlan, inputs: Operand, weight: Operand, bias: Tensor | None
) -> Tensor:
    """Gather, multiply, reduce: the layer's output from its share of the input."""
    overlap = plan.overlap
    if overlap.gather_forward or overlap.scatter_forward:
        given = (inputs, weight, overlap.name, "forward", plan.dtype, plan.tp_group)
        return (
            multiply_gathered(*given)[0] if overlap.gather_forward else multiply_scattered(*given)
        )
    if plan.gathers_input:
        rows = inputs.for_rows() if isinstance(inputs, Quantized) else inputs
        whole = gather(rows, plan.tp_group)
    else:
        whole = inputs
    out = product(whole, weight, "forward", plan.dtype, bias)
    del whole
    if plan.parallel_mode == "row" and plan.tp_size > 1:
        if plan.sequence_parallel:
            return start_reduce_scatter(out, plan.tp_group, asynchronous=False).wait()
        return start_all_reduce(out, plan.tp_group, asynchronous=False).wait()
    return out


def kept_input(plan: LinearPlan, inputs: Operand, original: Tensor) -> Operand:
    """What of the input the backward pass needs."""
    if plan.save_original_input:
        return original
    if isinstance(inputs, Quantized):
        assert plan.quantizers is not None
        if plan.gathers_input and plan.quantizers.inputs.gathers_rows_only:
            return inputs.for_rows()
        return inputs.for_columns()
    return inputs


class MainGradient:
    """Where a weight's gradient goes: the weight itself is not kept alive by it."""

    def __init__(self, weight: Tensor, fused: bool) -> None:
        self._fused = fused
        self._weight = weakref.ref(weight)

    def target(self) -> Tensor | None:
        """The main gradient, if products add to it."""
        if not self._fused:
            return None
        weight = self._weight()
        assert weight is not None
        # Megatron-FSDP makes main gradients when they are asked for.
        getter: Callable[[], Tensor] | None = getattr(weight, "get_main_grad", None)
        if getter is not None and hasattr(weight, "__fsdp_param__"):
            return getter()
        return weight.main_grad

    def accumulates(self, is_first_microbatch: bool | None) -> bool:
        """Whether the product adds to what is there, or is the first to write."""
        weight = self._weight()
        overwrites = getattr(weight, "overwrite_main_grad", False)
        return self._fused and not overwrites and not is_first_microbatch

    def answer(self, wgrad: Tensor | None) -> Tensor | None:
        """The gradient autograd is given."""
        if not self._fused:
            return wgrad
        weight: Any = self._weight()
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        zero = getattr(weight, "zero_out_wgrad", False)
        return get_dummy_wgrad(weight.main_grad.shape, weight.dtype, zero=zero)


def prepare_gradient(
    plan: LinearPlan, grad_output: Tensor, with_bias: bool, needs_wgrad: bool
) -> tuple[Operand, Tensor | None]:
    """The output gradient as products take it, gathered, and the bias gradient if made here."""
    grad_output = grad_output.reshape(-1, grad_output.shape[-1]).contiguous()
    if plan.quantizers is None:
        if plan.gathers_gradient and not plan.overlap.gather_gradient:
            return gather(grad_output, plan.tp_group), None
        return grad_output, None
    quantizer = plan.quantizers.grad_output
    if plan.gathers_gradient:
        bias_grad = grad_output.sum(dim=0) if with_bias else None
        share = quantizer(
            grad_output, columnwise=not quantizer.gathers_rows_only, group=plan.tp_group
        )
        if plan.overlap.gather_gradient:
            return share, bias_grad
        whole = gather(share, plan.tp_group)
        assert isinstance(whole, Quantized)
        return (whole.with_columns() if needs_wgrad else whole), bias_grad
    if with_bias:
        bias_grad, made = quantizer.with_bias_grad(
            grad_output, rowwise=True, columnwise=needs_wgrad
        )
        return made, bias_grad
    return quantizer(grad_output, columnwise=needs_wgrad), None


def start_input(plan: LinearPlan, inputs: Operand) -> Pending:
    """Start gathering the input for the weight gradient."""
    if plan.quantizers is not None and isinstance(inputs, Tensor):
        quantizer = plan.quantizers.inputs
        rows = plan.gathers_input and quantizer.gathers_rows_only
        group = plan.tp_group if plan.gathers_input else None
        inputs = quantizer(inputs, rowwise=rows, columnwise=not rows, group=group)
    if not plan.gathers_input:
        return Pending(None, lambda: inputs)
    return start_gather(inputs, plan.tp_group, asynchronous=True)


def backward(
    plan: LinearPlan,
    grad_output: Tensor,
    inputs: Operand | None,
    weight: Operand,
    main_gradient: MainGradient,
    *,
    needs_dgrad: bool,
    needs_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of input, weight and bias; ``inputs`` None: no weight gradient."""
    gradient, bias_grad = prepare_gradient(plan, grad_output, needs_bias, inputs is not None)
    coming = None if inputs is None else start_input(plan, inputs)
    dgrad: Pending | None = None
    overlap = plan.overlap
    if overlap.gather_gradient or overlap.scatter_gradient:
        if isinstance(weight, Quantized):
            weight = weight.with_columns()
        given = (weight, overlap.name, "dgrad", plan.dtype, plan.tp_group)
        if overlap.gather_gradient:
            made, gradient = multiply_gathered(gradient, *given)
            if isinstance(gradient, Quantized) and inputs is not None:
                gradient = gradient.with_columns()
        else:
            made = multiply_scattered(gradient, *given)
        dgrad = Pending(None, lambda: made)
    elif needs_dgrad:
        if isinstance(weight, Quantized):
            weight = weight.with_columns()
        whole_dgrad = product(gradient, weight, "dgrad", plan.dtype)
        if plan.parallel_mode == "column" and plan.tp_size > 1:
            start = start_reduce_scatter if plan.sequence_parallel else start_all_reduce
            dgrad = start(whole_dgrad, plan.tp_group, asynchronous=True)
        else:
            dgrad = Pending(None, lambda: whole_dgrad)
    wgrad = None
    if coming is not None:
        whole = coming.wait()
        if isinstance(whole, Quantized):
            whole = whole.with_columns()
        compute = partial(
            weight_gradient,
            gradient,
            whole,
            plan.dtype,
            main_gradient.target(),
            main_gradient.accumulates(plan.is_first_microbatch),
            needs_bias and bias_grad is None and plan.quantizers is None,
        )
        if plan.delayed is None:
            wgrad, fused_bias_grad = compute()
            bias_grad = fused_bias_grad if bias_grad is None else bias_grad
        else:
            plan.delayed.append(partial(_as_list, compute))
        wgrad = main_gradient.answer(wgrad)
        del whole, compute
    return (None if dgrad is None else dgrad.wait()), wgrad, bias_grad


def _as_list(
    compute: Callable[[], tuple[Tensor | None, Tensor | None]],
) -> tuple[list[Tensor | None], Tensor | None]:
    wgrad, bias_grad = compute()
    return [wgrad], bias_grad
