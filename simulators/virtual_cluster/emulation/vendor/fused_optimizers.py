"""Apex's fused Adam and SGD: one multi-tensor kernel for each list.

States are made at the first step, in fp32, as the real optimizers do; which tensors go into one
call follows their types. Hyperparameters decide nothing that costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.multi_tensor import (
    multi_tensor_adam,
    multi_tensor_applier,
    multi_tensor_sgd,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal

_HALF = (torch.float16, torch.bfloat16)


class _FusedOptimizer(torch.optim.Optimizer):
    """What both share: a skip flag on the device, and a kernel for each type of parameter."""

    kernel: Callable[..., Any]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int, device="cuda")

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients unless ``set_to_none`` is False."""
        super().zero_grad(set_to_none=set_to_none is not False)

    def make_states(self, param: Tensor) -> dict[str, Tensor]:
        """The states of one parameter, in the order of the kernel."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """One step: a multi-tensor kernel for each type of parameter."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            lists: dict[torch.dtype, list[list[Tensor]]] = {}
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(self.make_states(param))
                tensors = (param.grad, param, *state.values())
                columns = lists.setdefault(param.dtype, [[] for _ in tensors])
                for column, tensor in zip(columns, tensors, strict=True):
                    column.append(tensor.detach())
            for columns in lists.values():
                multi_tensor_applier(type(self).kernel, self._dummy_overflow_buf, columns)
        return loss


class FusedAdam(_FusedOptimizer):
    """``apex.optimizers.FusedAdam``."""

    kernel = multi_tensor_adam

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if capturable:
            raise refusal("FusedAdam.capturable", "CUDA graphs are not captured", "False")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.capturable = False
        self.master_weights = master_weights

    def make_states(self, param: Tensor) -> dict[str, Tensor]:
        names = ("exp_avg", "exp_avg_sq")
        made = {name: torch.zeros_like(param, dtype=torch.float32) for name in names}
        if self.master_weights and param.dtype in _HALF:
            made["master_param"] = param.detach().float()
        return made


class FusedSGD(_FusedOptimizer):
    """``apex.optimizers.FusedSGD``, with fp32 momenta."""

    kernel = multi_tensor_sgd

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def make_states(self, param: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(param, dtype=torch.float32)}
