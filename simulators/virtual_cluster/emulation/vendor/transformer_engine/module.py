"""What modules with weights have in common: parameters, groups, 8-bit state, how calls run."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.quantized import (
    PER_TENSOR,
    quantize,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    QuantizedStorage,
    Quantizer,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.recipes import (
    DelayedScaling,
    Recipe,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.userbuffers import (
    overlaps,
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


class TransformerEngineBaseModule(nn.Module):
    """Base of the modules that have weights."""

    rng_tracker_name: str | None = None
    get_rng_state_tracker: Callable[[], Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        assert torch.cuda.is_available(), "TransformerEngine needs CUDA."
        self.fp8 = self.fp8_calibration = self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "recipe": None}
        self.tp_group: Any = None
        self.tp_size = 1
        self.sequence_parallel = self.primary_weights_in_fp8 = False
        self.workspaces: dict[str, QuantizedStorage] = {}
        # Scales of first runs of checkpoints, for the second to be equal, and the latest ones.
        self._first_runs: deque[tuple[Tensor, Tensor]] = deque()
        self._latest: tuple[Tensor, Tensor] | None = None
        self._initialisers: dict[str, Callable[[Tensor], Any]] = {}

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The ranks that share this module's weights."""
        self.tp_group = tp_group

    def add_parameter(
        self, name: str, shape: Sequence[int], device: Any, initialise: Callable[[Tensor], Any]
    ) -> None:
        self.register_parameter(
            name, nn.Parameter(torch.empty(tuple(shape), dtype=self.dtype, device=device))
        )
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
            stream: Any = nullcontext()
            if self.get_rng_state_tracker is not None:
                named = (self.rng_tracker_name,) if self.rng_tracker_name else ()
                stream = self.get_rng_state_tracker().fork(*named)
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
            self.workspaces.clear()
            self.fp8_initialized = False
        self.fp8_meta |= {"recipe": recipe, "fp8_checkpoint": True}
        if not isinstance(recipe, DelayedScaling):
            self.fp8_initialized = True
            return
        # Input, weight and output of each product; output gradient and input gradient.
        for key, tensors in (("scaling_fwd", 3), ("scaling_bwd", 2)):
            if not self.fp8_initialized:
                count = tensors * num_gemms
                self.fp8_meta[key] = _Scaling(
                    torch.ones(count, dtype=torch.float32, device="cuda"),
                    torch.zeros(
                        recipe.amax_history_len, count, dtype=torch.float32, device="cuda"
                    ),
                )
        self.fp8_initialized = True
        if FP8GlobalStateManager.recomputing:
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

    def get_extra_state(self) -> Tensor:
        """What checkpoints keep beside parameters; scales are invented, so nothing."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Nothing to restore."""


class LinearModule(TransformerEngineBaseModule):
    """Weight and bias of a linear layer, and how its calls run."""

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
        super().__init__()
        if others.get("symmetric_ar_type") is not None:
            raise refusal("symmetric_ar_type", "all-reduce over symmetric memory", "None")
        if parameters_split is not None:
            raise refusal("parameters_split", "weights registered in parts", "None")
        self.dtype = params_dtype or torch.get_default_dtype()
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.get_rng_state_tracker = get_rng_state_tracker
        self.rng_tracker_name = rng_tracker_name
        self.ub_name = str(others.get("ub_name") or "")
        self.save_original_input = bool(others.get("save_original_input", False))
        # Weight gradients that wait, when they are to; see ``need_backward_dw``.
        self.delayed: deque[Any] | None = deque() if others.get("delay_wgrad_compute") else None
        self._gradient_hooks: list[Callable[[], Any]] = []
        self.tp_group = tp_group
        self.tp_size = tp_size if tp_group is None else dist.get_world_size(tp_group)
        self.parallel_mode = parallel_mode
        self.in_features = in_features // (self.tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (self.tp_size if parallel_mode == "column" else 1)
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.gathers_input = self.sequence_parallel and parallel_mode == "column"
        self.gathers_gradient = self.sequence_parallel and parallel_mode == "row"
        self.overlaps = overlaps(others, parallel_mode) if self.sequence_parallel else {}
        # A sum over ranks comes before the bias, which then is an addition of its own.
        self.gemm_bias_unfused_add = parallel_mode == "row" and self.apply_bias
        self.add_parameters(
            init_method or (lambda tensor: nn.init.normal_(tensor, 0.0, 0.023)), device
        )
        self.reset_parameters(defer_init=device == "meta")

    def weight_names(self) -> tuple[str, ...]:
        """The weights that products take, in order."""
        return ("weight",)

    def add_parameters(self, init_method: Callable[[Tensor], Any], device: Any) -> None:
        for name in self.weight_names():
            self.add_parameter(name, (self.out_features, self.in_features), device, init_method)
        if self.use_bias:
            self.add_parameter("bias", (self.out_features,), device, nn.init.zeros_)
        else:
            self.bias = torch.empty(0, dtype=self.dtype, device=device)

    def reset_parameters(self, defer_init: bool = False) -> None:
        super().reset_parameters(defer_init)
        if not defer_init:
            self.mark()

    def mark(self) -> None:
        """Attributes frameworks know sharded parameters by, and those whose gradients wait."""
        weights = [getattr(self, name) for name in self.weight_names()]
        for parameter in (*weights, *((self.bias,) if self.use_bias else ())):
            if self.delayed is not None:
                parameter.skip_backward_post_hook = True
            if parameter.dim() > 1 or self.parallel_mode == "column":
                parameter.tensor_model_parallel = True
                parameter.partition_dim = 1 if self.parallel_mode == "row" else 0
                parameter.partition_stride = 1
        if self.use_bias and self.parallel_mode == "row":
            self.bias.sequence_parallel = self.sequence_parallel

    def call(
        self, inputs: Tensor, weight: Tensor, is_first_microbatch: bool | None, num_gemms: int = 1
    ) -> Call:
        """How this call runs."""
        self.init_fp8_metadata(num_gemms)
        recipe = self.fp8_meta["recipe"] if self.fp8 else None
        if recipe is not None and self.overlaps and recipe.kind not in PER_TENSOR:
            raise refusal("tp_comm_overlap", "user buffers for blocks of scales", "False")
        grad_enabled = torch.is_grad_enabled()
        trains = grad_enabled and (inputs.requires_grad or weight.requires_grad)
        return Call(
            self,
            activation_dtype(inputs),
            recipe,
            is_first_microbatch,
            grad_enabled,
            self.fp8 and trains and FP8GlobalStateManager.is_first_fp8_module(),
        )

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Callable[[], Any]) -> None:
        """What to call when a delayed weight gradient has been computed."""
        self._gradient_hooks.append(hook)

    def need_backward_dw(self) -> bool:
        """Whether weight gradients are computed by ``backward_dw``."""
        return self.delayed is not None

    def backward_dw(self) -> None:
        """Compute the weight gradient that has waited longest."""
        if not self.delayed:
            return
        wgrads, bias_grad = self.delayed.popleft()()
        for name, wgrad in zip(self.weight_names(), wgrads, strict=True):
            if wgrad is not None:
                getattr(self, name).grad = wgrad
        if bias_grad is not None and self.bias.grad is None:
            self.bias.grad = bias_grad
        for hook in self._gradient_hooks:
            hook()


@dataclass(frozen=True)
class Call:
    """How one call of a linear layer runs; everything but its tensors.

    ``is_first_microbatch`` None: 8-bit weights are not kept between micro-batches.
    ``updates_scales``: this backward pass is the last of an 8-bit region.
    """

    layer: LinearModule
    dtype: torch.dtype
    recipe: Recipe | None
    is_first_microbatch: bool | None
    grad_enabled: bool
    updates_scales: bool

    @property
    def one_scale(self) -> bool:
        """Transposed data cannot be gathered over rows, so row data is, and transposed after."""
        return self.recipe is not None and self.recipe.kind in PER_TENSOR

    @property
    def gathers_rows(self) -> bool:
        return self.one_scale and self.layer.gathers_input

    def quantizer(
        self, role: str, columnwise: bool, *, rowwise: bool = True, group: Any = None
    ) -> Quantizer:
        """How the input, the weight or the output gradient (grad) becomes 8-bit."""
        assert self.recipe is not None
        form = self.recipe.fp8_format
        dtype = form.backward_type if role == "grad" else form.forward_type
        rowwise = rowwise or self.one_scale
        kind = self.recipe.kind
        return Quantizer(kind, dtype, rowwise, columnwise, group, role == "weight")

    def input_quantizer(self, needs_wgrad: bool, normed: bool) -> Quantizer | None:
        """For this rank's share of the input; None outside of an 8-bit region."""
        if self.recipe is None:
            return None
        kept = needs_wgrad and (normed or not self.layer.save_original_input)
        group = self.layer.tp_group if self.layer.gathers_input else None
        return self.quantizer("input", kept and not self.gathers_rows, group=group)

    def late_input_quantizer(self) -> Quantizer:
        """For an input that was kept as it was given, in the backward pass."""
        rows = self.gathers_rows
        group = self.layer.tp_group if self.layer.gathers_input else None
        return self.quantizer("input", not rows, rowwise=rows, group=group)

    def weight(self, weight: Tensor, needs_dgrad: bool, name: str = "weight") -> Operand:
        """The weight in the type products take; 8-bit ones are made once a step when cached."""
        if self.recipe is None:
            return cast_if_needed(weight, self.dtype)
        columnwise = (self.grad_enabled and needs_dgrad) or FP8GlobalStateManager.will_recompute()
        quantizer = self.quantizer("weight", columnwise)
        kept = self.layer.workspaces
        cached = None if self.is_first_microbatch is None else kept.get(name)
        if cached is None or (columnwise and cached.must_be_made_again):
            cached = quantize(weight, quantizer)
            if self.is_first_microbatch is not None:
                kept[name] = cached
        elif self.is_first_microbatch:
            quantize(weight, cached.quantizer, cached)
        return cached

    def end_backward(self) -> None:
        """Agree on the largest values of gradients, after the last backward pass of a region."""
        if self.updates_scales:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)


class MainGradient:
    """Where a weight's gradient goes: the weight itself is not kept alive by it."""

    def __init__(self, weight: Tensor, fused: bool) -> None:
        self._fused = fused
        self._weight = weakref.ref(weight)

    def target(self) -> Tensor | None:
        """The main gradient, if products add to it."""
        if not self._fused:
            return None
        weight: Any = self._weight()
        # Megatron-FSDP makes main gradients when they are asked for.
        if hasattr(weight, "__fsdp_param__"):
            return weight.get_main_grad()
        return weight.main_grad

    def accumulates(self, is_first_microbatch: bool | None) -> bool:
        """Whether the product adds to what is there, or is the first to write."""
        overwrites = getattr(self._weight(), "overwrite_main_grad", False)
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


def mark_norm(module: nn.Module, names: tuple[str, ...], sequence_parallel: bool | None) -> None:
    """Tell frameworks that gradients of these are to be summed over sequence-parallel ranks."""
    for name in names:
        parameter = getattr(module, name, None)
        if parameter is not None and sequence_parallel is not None:
            parameter.sequence_parallel = sequence_parallel
