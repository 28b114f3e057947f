"""Which recipe is in force, and the agreement on largest values that delayed scaling asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.recipes import (
    DelayedScaling,
    Recipe,
)

_FP8, _BLACKWELL, _HOPPER = (8, 9), (10, 0), (9, 0)


def _capability() -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability()
    return major, minor


def is_fp8_available(return_reason: bool = False) -> Any:
    """Whether the device multiplies in 8 bits."""
    return _answer(_capability() >= _FP8, "compute capability 8.9", return_reason)


def is_mxfp8_available(return_reason: bool = False) -> Any:
    """Whether the device takes scales for blocks of 32."""
    return _answer(_capability() >= _BLACKWELL, "compute capability 10.0", return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> Any:
    """Whether the device takes scales for blocks of 128."""
    return _answer(_capability() >= _HOPPER, "compute capability 9.0", return_reason)


def _answer(available: bool, needs: str, return_reason: bool) -> Any:
    if return_reason:
        return available, "" if available else f"needs {needs}"
    return available


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
    _recomputes = False
    _recomputing = False

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
    def is_fp8_calibration(cls) -> bool:
        return False

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        return False

    @classmethod
    def fp8_graph_capturing(cls) -> bool:
        return False

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        return check_fp8_support()

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
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        raise refusal("set_skip_fp8_weight_update_tensor", "CUDA graphs are not captured")

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
        if (
            amaxes.recipe.reduce_amax
            and dist.is_initialized()
            and dist.get_world_size(amaxes.group) > 1
        ):
            dist.all_reduce(joined, op=dist.ReduceOp.MAX, group=amaxes.group)
        kernel("update_amax_and_scale")(joined, amaxes.histories, amaxes.scales)

    @classmethod
    def enter(cls, enabled: bool, recipe: Recipe | None, group: Any) -> tuple[Any, ...]:
        """Start a region; what to restore at its end."""
        before = (cls._enabled, cls._recipe, cls._group)
        if enabled:
            _check_support(recipe or DelayedScaling())
        cls._enabled, cls._recipe, cls._group = enabled, recipe or DelayedScaling(), group
        if cls._depth == 0:
            cls._is_first_module = True
        cls._depth += 1
        return before

    @classmethod
    def leave(cls, enabled: bool, before: tuple[Any, ...]) -> None:
        """End a region; the outermost updates the scales of the forward pass."""
        cls._enabled, cls._recipe, cls._group = before
        cls._depth -= 1
        if enabled and cls._depth == 0 and torch.is_grad_enabled():
            cls.reduce_and_update_fp8_tensors(forward=True)

    @classmethod
    @contextmanager
    def recomputation(cls, recomputes: bool, recomputing: bool) -> Iterator[None]:
        """Inside of an activation checkpoint: its first run, or (``recomputing``) its second."""
        before = (cls._recomputes, cls._recomputing, cls._is_first_module)
        cls._recomputes = recomputes and cls._enabled
        cls._recomputing = recomputes and recomputing
        try:
            yield
        finally:
            cls._recomputes, cls._recomputing = before[:2]
            if recomputing:
                cls._is_first_module = before[2]

    @classmethod
    def is_recomputing(cls) -> bool:
        """Whether this is the second run of a checkpoint."""
        return cls._recomputing

    @classmethod
    def will_recompute(cls) -> bool:
        """Whether this is the first run of a checkpoint in 8 bits."""
        return cls._recomputes and not cls._recomputing


def _check_support(recipe: Recipe) -> None:
    checks = [is_fp8_available]
    if recipe.mxfp8():
        checks.append(is_mxfp8_available)
    if recipe.float8_block_scaling():
        checks.append(is_fp8_block_scaling_available)
    for check in checks:
        available, reason = check(return_reason=True)
        if not available:
            raise AssertionError(f"{type(recipe).__name__} {reason}")


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Modules run in 8 bits inside."""
    if calibrating:
        raise refusal("fp8_autocast.calibrating", "calibration", "False")
    before = FP8GlobalStateManager.enter(enabled, fp8_recipe, fp8_group)
    try:
        yield
    finally:
        FP8GlobalStateManager.leave(enabled, before)


def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: Any = None,
    _graph: bool = False,
) -> Any:
    """``fp8_autocast`` by its newer name."""
    return fp8_autocast(enabled, calibrating, recipe, amax_reduction_group, _graph)


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


def get_default_fp8_recipe() -> Recipe:
    """The recipe of a region that names none."""
    return DelayedScaling()
