"""What all modules have in common: parameters and their initialisation, groups, 8-bit state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    Quantized,
    Quantizer,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.recipes import (
    DelayedScaling,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)

_dummy_gradients: dict[tuple[Any, ...], Tensor] = {}


def get_dummy_wgrad(shape: Sequence[int], dtype: torch.dtype, zero: bool = False) -> Tensor:
    """Stands for a weight gradient that already is in the main gradient: one for each shape."""
    key = (*shape, dtype)
    if key not in _dummy_gradients:
        _dummy_gradients[key] = torch.empty(tuple(shape), dtype=dtype, device="cuda")
    if zero:
        _dummy_gradients[key].fill_(0)
    return _dummy_gradients[key].detach()


def cast_if_needed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in ``dtype``, itself if it is."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def activation_dtype(inputs: Tensor) -> torch.dtype:
    """What a module computes in: autocast's type, else that of its input."""
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return inputs.dtype


@dataclass
class _Scaling:
    """Delayed scaling's state of one pass of a module: for each tensor, a scale and a history."""

    scale: Tensor
    amax_history: Tensor


@dataclass(frozen=True)
class LinearQuantizers:
    """How a linear layer makes its three operands 8-bit."""

    inputs: Quantizer
    weight: Quantizer
    grad_output: Quantizer


class TransformerEngineBaseModule(nn.Module):
    """Base of the modules that have weights."""

    rng_tracker_name: str | None = None
    get_rng_state_tracker: Callable[[], Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        assert torch.cuda.is_available(), "TransformerEngine needs CUDA."
        self.fp8 = False
        self.fp8_calibration = False
        self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "recipe": None}
        self.tp_group: Any = None
        self.tp_size = 1
        self.sequence_parallel = False
        self.primary_weights_in_fp8 = False
        self._fp8_workspaces: dict[str, Quantized] = {}
        # Scales of first runs of checkpoints, for the second to be equal, and the latest ones.
        self._first_runs: deque[tuple[Tensor, Tensor]] = deque()
        self._latest: tuple[Tensor, Tensor] | None = None
        self._initialisers: dict[str, Callable[[Tensor], Any]] = {}
        # Weight gradients that wait, when they are to; see ``need_backward_dw``.
        self._delayed: deque[Callable[[], Any]] | None = None
        self._gradient_hooks: list[Callable[[], Any]] = []

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The ranks that share this module's weights."""
        self.tp_group = tp_group

    def _join_group(self, tp_group: Any, tp_size: int) -> None:
        self.tp_group = tp_group
        self.tp_size = tp_size if tp_group is None else dist.get_world_size(tp_group)

    def _add_parameter(
        self, name: str, tensor: Tensor, initialise: Callable[[Tensor], Any]
    ) -> None:
        self.register_parameter(name, nn.Parameter(tensor))
        self._initialisers[name] = initialise

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Initialise the parameters; those on the meta device move to the device first."""
        if defer_init:
            return
        for name, param in list(self.named_parameters(recurse=False)):
            made = param
            if param.device.type == "meta":
                made = nn.Parameter(torch.empty_like(param, device="cuda"))
                self.register_parameter(name, made)
            tracker = self.get_rng_state_tracker
            if tracker is None:
                stream: Any = nullcontext()
            elif self.rng_tracker_name:
                stream = tracker().fork(self.rng_tracker_name)
            else:
                stream = tracker().fork()
            with torch.no_grad(), stream:
                self._initialisers[name](made)

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Take over the recipe in force; delayed scaling makes its state."""
        self.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        if not self.fp8:
            self.fp8_initialized = False
            return
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        known = self.fp8_meta["recipe"]
        if known is not None and known.kind != recipe.kind:
            self._fp8_workspaces.clear()
            self.fp8_initialized = False
        self.fp8_meta["recipe"] = recipe
        self.fp8_meta["fp8_checkpoint"] = True
        if not self.fp8_initialized and isinstance(recipe, DelayedScaling):
            # Input, weight and output of each product; output gradient and input gradient.
            for key, tensors in (("scaling_fwd", 3), ("scaling_bwd", 2)):
                count = tensors * num_gemms
                self.fp8_meta[key] = _Scaling(
                    torch.ones(count, dtype=torch.float32, device="cuda"),
                    torch.zeros(
                        recipe.amax_history_len, count, dtype=torch.float32, device="cuda"
                    ),
                )
        self.fp8_initialized = True
        if not isinstance(recipe, DelayedScaling):
            return
        if FP8GlobalStateManager.is_recomputing():
            self._latest = self._scaling_copies()
            self._restore_scaling(self._first_runs.popleft())
            return
        FP8GlobalStateManager.add_fp8_tensors_to_global_buffer(self.fp8_meta)
        if FP8GlobalStateManager.will_recompute():
            self._first_runs.append(self._scaling_copies())

    def end_forward(self) -> None:
        """Delayed scaling, second run of a checkpoint: go on with the latest scales."""
        if self._latest is not None:
            self._restore_scaling(self._latest)
            self._latest = None

    def _scaling_copies(self) -> tuple[Tensor, Tensor]:
        scaling = self.fp8_meta["scaling_fwd"]
        return scaling.amax_history.clone(), scaling.scale.clone()

    def _restore_scaling(self, copies: tuple[Tensor, Tensor]) -> None:
        scaling = self.fp8_meta["scaling_fwd"]
        scaling.amax_history.copy_(copies[0])
        scaling.scale.copy_(copies[1])

    def quantizers(self) -> LinearQuantizers | None:
        """How to make operands 8-bit; None outside of an 8-bit region."""
        if not self.fp8:
            return None
        recipe = self.fp8_meta["recipe"]
        forward, backward = recipe.fp8_format.forward_type, recipe.fp8_format.backward_type
        return LinearQuantizers(
            Quantizer(recipe.kind, forward),
            Quantizer(recipe.kind, forward, weight=True),
            Quantizer(recipe.kind, backward),
        )

    def get_extra_state(self) -> Tensor:
        """What checkpoints keep beside parameters; scales are invented, so nothing."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Nothing to restore."""

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Callable[[], Any]) -> None:
        """What to call when a delayed weight gradient has been computed."""
        self._gradient_hooks.append(hook)

    def need_backward_dw(self) -> bool:
        """Whether weight gradients are computed by ``backward_dw``."""
        return self._delayed is not None

    def backward_dw(self) -> None:
        """Compute the weight gradient that has waited longest."""
        if not self._delayed:
            return
        wgrads, bias_grad = self._delayed.popleft()()
        for weight, wgrad in zip(self.weight_parameters(), wgrads, strict=True):
            if wgrad is not None:
                weight.grad = wgrad
        if bias_grad is not None and self.bias.grad is None:
            self.bias.grad = bias_grad
        for hook in self._gradient_hooks:
            hook()

    def weight_parameters(self) -> list[Tensor]:
        """The weights that products take, in order."""
        return [self.weight]
