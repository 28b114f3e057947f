"""Which recipe is in force, and the agreement on largest values that delayed scaling asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.quantized import (
    update_scales,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal, refused
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.recipes import (
    DelayedScaling,
    Recipe,
)


def _available_from(major: int, minor: int) -> Callable[..., Any]:
    """Asks whether the device multiplies so, with the reason why not if that is wanted."""

    def function(return_reason: bool = False) -> Any:
        available = torch.cuda.get_device_capability() >= (major, minor)
        reason = "" if available else f"needs compute capability {major}.{minor}"
        return (available, reason) if return_reason else available

    return function


is_fp8_available = _available_from(8, 9)
is_fp8_block_scaling_available = _available_from(9, 0)
is_mxfp8_available = _available_from(10, 0)
_NEEDS = {"mxfp8": is_mxfp8_available, "blockwise": is_fp8_block_scaling_available}


def check_fp8_support() -> tuple[bool, str]:
    """``is_fp8_available`` with the reason."""
    answer: tuple[bool, str] = is_fp8_available(return_reason=True)
    return answer


@dataclass
class _Amaxes:
    """Largest values and scales of one pass of delayed scaling, of every module that has run."""

    histories: list[Tensor] = field(default_factory=list)
    scales: list[Tensor] = field(default_factory=list)
    recipe: Recipe | None = None
    group: Any = None


class FP8GlobalStateManager:
    """Process-wide state of 8-bit training."""

    _enabled = False
    _recipe: Recipe | None = None
    _group: Any = None
    _depth = 0
    _is_first_module = False
    _amaxes: dict[bool, _Amaxes] = {}  # noqa: RUF012 - process-wide on purpose
    # Inside of an activation checkpoint, and whether this is its second run.
    recomputes = False
    recomputing = False

    is_fp8_available = staticmethod(check_fp8_support)
    set_skip_fp8_weight_update_tensor = staticmethod(
        refused("set_skip_fp8_weight_update_tensor", "CUDA graphs are not captured")
    )
    is_fp8_calibration = staticmethod(lambda: False)
    with_fp8_parameters = staticmethod(lambda: False)
    fp8_graph_capturing = staticmethod(lambda: False)

    @classmethod
    def reset(cls) -> None:
        """Forget modules and largest values."""
        cls._enabled = cls._is_first_module = False
        cls._recipe = cls._group = None
        cls._depth = 0
        cls._amaxes = {}

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        return cls._enabled

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        return cls._recipe or DelayedScaling()

    @classmethod
    def get_fp8_group(cls) -> Any:
        return cls._group

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """True once in a region: its backward, the last to run, updates gradients' scales."""
        first, cls._is_first_module = cls._is_first_module, False
        return first

    @classmethod
    def add_fp8_tensors_to_global_buffer(cls, fp8_meta: dict[str, Any]) -> None:
        """Take a module's largest values and scales into the update of the region."""
        for forward, key in ((True, "scaling_fwd"), (False, "scaling_bwd")):
            kept = fp8_meta[key]
            amaxes = cls._amaxes.setdefault(forward, _Amaxes())
            amaxes.recipe, amaxes.group = cls._recipe, cls._group
            if not any(kept.scale is scale for scale in amaxes.scales):
                amaxes.histories.append(kept.amax_history)
                amaxes.scales.append(kept.scale)

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """Agree on the largest values of a pass and make the scales of the next."""
        amaxes = cls._amaxes.get(forward)
        if amaxes is None or not isinstance(amaxes.recipe, DelayedScaling):
            return
        joined = torch.cat([history[0] for history in amaxes.histories])
        shared = amaxes.recipe.reduce_amax and dist.is_initialized()
        if shared and dist.get_world_size(amaxes.group) > 1:
            dist.all_reduce(joined, op=dist.ReduceOp.MAX, group=amaxes.group)
        update_scales(joined, amaxes.histories, amaxes.scales)

    @classmethod
    @contextmanager
    def region(cls, enabled: bool, recipe: Recipe | None, group: Any) -> Iterator[None]:
        """Modules run by ``recipe`` inside; the outermost updates the forward pass's scales."""
        before = cls._enabled, cls._recipe, cls._group
        recipe = recipe or DelayedScaling()
        for check in (is_fp8_available, _NEEDS.get(recipe.kind)) if enabled else ():
            available, reason = check(return_reason=True) if check is not None else (True, "")
            if not available:
                raise AssertionError(f"{type(recipe).__name__} {reason}")
        cls._enabled, cls._recipe, cls._group = enabled, recipe, group
        cls._is_first_module = cls._is_first_module or cls._depth == 0
        cls._depth += 1
        try:
            yield
        finally:
            cls._enabled, cls._recipe, cls._group = before
            cls._depth -= 1
            if enabled and cls._depth == 0 and torch.is_grad_enabled():
                cls.reduce_and_update_fp8_tensors(forward=True)

    @classmethod
    @contextmanager
    def recomputation(cls, recomputes: bool, recomputing: bool) -> Iterator[None]:
        """Inside of an activation checkpoint: its first run, or (``recomputing``) its second."""
        before = (cls.recomputes, cls.recomputing, cls._is_first_module)
        cls.recomputes = recomputes and cls._enabled
        cls.recomputing = recomputes and recomputing
        try:
            yield
        finally:
            cls.recomputes, cls.recomputing = before[:2]
            if recomputing:
                cls._is_first_module = before[2]

    @classmethod
    def will_recompute(cls) -> bool:
        """Whether this is the first run of a checkpoint in 8 bits."""
        return cls.recomputes and not cls.recomputing


def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: Any = None,
    _graph: bool = False,
) -> Any:
    """Modules run in 8 bits inside."""
    if calibrating:
        raise refusal("fp8_autocast.calibrating", "calibration", "False")
    return FP8GlobalStateManager.region(enabled, recipe, amax_reduction_group)


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> Any:
    """``autocast`` by its older name."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


@contextmanager
def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Parameters kept in 8 bits only: refused unless disabled."""
    if enabled:
        raise refusal("fp8_model_init", "parameters kept in 8 bits only", "fp8_param_gather off")
    yield


get_default_fp8_recipe = DelayedScaling
