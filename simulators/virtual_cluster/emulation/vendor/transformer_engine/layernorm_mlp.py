"""``te.pytorch.LayerNormMLP``: a norm, two linear layers and the activation between them.

Run as its parts: the kernels and the tensors kept are theirs. In 8 bits the library lets the
activation's kernel write them, which here is a cast of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.activations import (
    activate,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.layernorm_linear import (
    LayerNormLinear,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.linear import Linear

_GATED = ("geglu", "reglu", "swiglu", "qgeglu", "sreglu")


class LayerNormMLP(nn.Module):
    """``te.pytorch.LayerNormMLP``, its parameters named as there."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__()
        self.activation = activation
        common = {
            "sequence_parallel": sequence_parallel,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "bias": bias,
            "params_dtype": params_dtype,
            "device": device,
        }
        width = ffn_hidden_size * (2 if activation in _GATED else 1)
        self._parts = (
            LayerNormLinear(
                hidden_size,
                width,
                eps=eps,
                init_method=init_method,
                normalization=normalization,
                zero_centered_gamma=zero_centered_gamma,
                parallel_mode="column" if set_parallel_mode else None,
                **common,
                **others,
            ),
            Linear(
                ffn_hidden_size,
                hidden_size,
                init_method=output_layer_init_method,
                return_bias=return_bias,
                parallel_mode="row" if set_parallel_mode else None,
                **common,
            ),
        )
        for prefix, part in zip(("fc1_", "fc2_"), self._parts, strict=True):
            for name, parameter in part.named_parameters():
                shown = name if name.startswith("layer_norm") else f"{prefix}{name}"
                self.register_parameter(shown, parameter)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Any:
        """The output of the second layer (and its bias, with ``return_bias``)."""
        first, second = self._parts
        self._share_parameters()
        inner = first(inp, is_first_microbatch=is_first_microbatch)
        return second(activate(inner, self.activation), is_first_microbatch=is_first_microbatch)

    def _share_parameters(self) -> None:
        """Parameters may have been moved or replaced since: the parts follow."""
        for prefix, part in zip(("fc1_", "fc2_"), self._parts, strict=True):
            for name, _ in list(part.named_parameters()):
                shown = name if name.startswith("layer_norm") else f"{prefix}{name}"
                part.register_parameter(name, getattr(self, shown))
