"""``te.pytorch.ops``' activations: one kernel in each pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import GATED, kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal, refused

__all__ = ["GATED", "activate"]


@differentiable
def _activation(inputs: Tensor, function: str) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    def gradient(inputs: Tensor, grad: Tensor) -> Any:
        return kernel("activation_bwd")(grad.contiguous(), inputs, function)

    return kernel("activation_fwd")(inputs, function), [inputs], gradient


def activate(inputs: Tensor, function: str) -> Tensor:
    """An activation by the name the kernels know."""
    out: Tensor = _activation(inputs.contiguous(), function)
    return out


class FusibleOperation(nn.Module):
    """One of the operations; the gated ones halve the width."""

    def __init__(self, cache_quantized_input: bool = False, **others: Any) -> None:
        super().__init__()
        if cache_quantized_input:
            raise refusal("activation_func_fp8_input_store", "inputs kept in 8 bits", "False")

    def forward(self, input: Tensor) -> Tensor:
        """The activated input."""
        return activate(input, type(self).__name__.lower())


GELU, ReLU, SiLU, GEGLU, ReGLU, SwiGLU = (
    type(name, (FusibleOperation,), {})
    for name in ("GELU", "ReLU", "SiLU", "GEGLU", "ReGLU", "SwiGLU")
)
Sequential = refused(
    "te.pytorch.ops.Sequential", "the operation fuser (use_te_op_fuser) is not there"
)
