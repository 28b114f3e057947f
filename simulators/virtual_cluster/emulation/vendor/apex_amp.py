"""``apex.amp`` as it was until May 2025: O0 and O1, of fp32 weights, and scaled losses.

O1 is ``torch.autocast`` of fp16 from ``initialize`` on, but for backward passes: Apex patches
torch's functions for as long. Of those that only Apex casts to fp32 three are followed. Gradients
are added to earlier ones by ``torch._foreach_add_``, a kernel of Apex's there. None overflows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from .compiled_kernels import multi_tensor_applier, multi_tensor_scale
from .refuse import refusal

# Scripts set ``_amp_state.loss_scalers[0]._loss_scale``.
_amp_state = SimpleNamespace(loss_scalers=None)
_CASTS = ("cast_model_type", "patch_torch_functions", "cast_model_outputs", "master_weights")


def initialize(
    models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **named: Any
) -> Any:
    """Models and optimizers as they were given; a refusal of other casts than those of O1."""
    if enabled:
        if opt_level not in ("O0", "O1") or any(named.get(name) for name in _CASTS):
            raise refusal("apex.amp.initialize", "casts of weights or of one's own", "O0, O1")
        scale = named.get("loss_scale") or ("dynamic" if opt_level == "O1" else 1.0)
        _amp_state.loss_scalers = [_scaler(scale) for _ in range(named.get("num_losses", 1))]
        if opt_level == "O1":
            torch.autocast("cuda", torch.float16).__enter__()
            for name in ("gelu", "grid_sample", "interpolate"):
                setattr(functional, name, partial(_in_fp32, getattr(functional, name)))
    return models if optimizers is None else (models, optimizers)


def _scaler(scale: Any) -> Any:
    dynamic, flag = scale == "dynamic", torch.zeros(1, dtype=torch.int, device="cuda")
    return SimpleNamespace(_loss_scale=2.0**16 if dynamic else float(scale), on=dynamic, flag=flag)


def _in_fp32(of: Any, input: Any, *args: Any, **named: Any) -> Any:
    return of(input.float(), *args, **named)


def master_params(optimizer: Any) -> Iterator[Any]:
    """The parameters that the optimizer steps."""
    return (weight for group in optimizer.param_groups for weight in group["params"])


@contextlib.contextmanager
def scale_loss(loss: Any, optimizers: Any, loss_id: int = 0, **named: Any) -> Iterator[Any]:
    """Gives the loss times its scale; then divides gradients by it in one kernel and reads
    whether one overflowed, where the scale is dynamic."""
    if named.get("delay_unscale"):
        raise refusal("apex.amp.scale_loss(delay_unscale)", "gradients are always unscaled")
    if _amp_state.loss_scalers is None:
        yield loss
        return
    scaler = _amp_state.loss_scalers[loss_id]
    scale = scaler._loss_scale
    listed = optimizers if isinstance(optimizers, list) else [optimizers]
    earlier = {weight: weight.grad for each in listed for weight in master_params(each)}
    scaled = scaler.on or scale != 1.0
    for weight in earlier if scaled else ():
        weight.grad = None
    with torch.autocast("cuda", enabled=False):
        yield loss.float() * scale if scaled else loss.float()
        torch.clear_autocast_cache()
        if scaled:
            scaler.flag.zero_()
            new = [(each.grad, old) for each, old in earlier.items() if each.grad is not None]
            if first := [grad for grad, old in new if old is None]:
                multi_tensor_applier(multi_tensor_scale, scaler.flag, [first, first], 1 / scale)
            if added := [(old, grad) for grad, old in new if old is not None]:
                torch._foreach_add_(*map(list, zip(*added, strict=True)), alpha=1 / scale)
            for weight, old in earlier.items():
                weight.grad = weight.grad if old is None else old
        if scaler.on and not named.get("delay_overflow_check"):
            scaler.flag.item()


def state_dict() -> dict[str, Any]:
    """The scale of each loss."""
    scales = [{"loss_scale": each._loss_scale} for each in _amp_state.loss_scalers or ()]
    return {f"loss_scaler{place}": scale for place, scale in enumerate(scales)}


def load_state_dict(state: dict[str, Any]) -> None:
    for each, kept in zip(_amp_state.loss_scalers or (), state.values(), strict=False):
        each._loss_scale = kept["loss_scale"]
