"""``te.pytorch.ops``' activations: one kernel in each pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


class _Activation(torch.autograd.Function):
    """Keeps the input."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, function: str) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.function = function
        out: Tensor = kernel("activation_fwd")(inputs, function)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        grad = kernel("activation_bwd")(grad_output.contiguous(), inputs, ctx.function)
        return grad, None


def activate(inputs: Tensor, function: str) -> Tensor:
    """An activation by the name the kernels know."""
    out: Tensor = _Activation.apply(inputs.contiguous(), function)
    return out


class FusibleOperation(nn.Module):
    """One of the operations; the gated ones halve the width."""

    function = ""

    def __init__(self, cache_quantized_input: bool = False, **others: Any) -> None:
        super().__init__()
        if cache_quantized_input:
            raise refusal("activation_func_fp8_input_store", "inputs kept in 8 bits", "False")

    def forward(self, input: Tensor) -> Tensor:
        """The activated input."""
        return activate(input, self.function)


class GELU(FusibleOperation):
    function = "gelu"


class ReLU(FusibleOperation):
    function = "relu"


class SiLU(FusibleOperation):
    function = "silu"


class GEGLU(FusibleOperation):
    function = "geglu"


class ReGLU(FusibleOperation):
    function = "reglu"


class SwiGLU(FusibleOperation):
    function = "swiglu"


class Sequential:
    """Fused sequences of operations: refused."""

    def __init__(self, *operations: Any) -> None:
        raise refusal("te.pytorch.ops.Sequential", "the operation fuser", "use_te_op_fuser off")
