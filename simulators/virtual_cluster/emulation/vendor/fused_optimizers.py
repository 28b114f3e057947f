"""Fused Adam and SGD of Apex and Transformer Engine: one multi-tensor kernel for each list.

States are made at the first step, in the types asked for, as the real optimizers do; which
tensors go into one call follows their types. Hyperparameters decide nothing that costs time.
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
_STATES = ("exp_avg", "exp_avg_sq", "master_param")


class _FusedOptimizer(torch.optim.Optimizer):
    """What both share: a skip flag on the device, and gradients that may live elsewhere."""

    use_decoupled_grad = False

    def _make_flag(self) -> None:
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int, device="cuda")

    def _gradient(self, param: Tensor) -> Tensor | None:
        name = "decoupled_grad" if self.use_decoupled_grad else "grad"
        return getattr(param, name, None)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients unless ``set_to_none`` is False."""
        if not self.use_decoupled_grad:
            super().zero_grad(set_to_none=set_to_none is not False)
            return
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none is False:
                    param.decoupled_grad.zero_()
                else:
                    param.decoupled_grad = None


class FusedAdam(_FusedOptimizer):
    """Transformer Engine's FusedAdam.

    States in fp32, or bf16 both (read and written by the kernel); in fp16 they are widened before
    and narrowed after, each by kernels of torch. States in 8 bits are refused.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
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
        self.master_weight_dtype = master_weight_dtype
        self.exp_avg_dtype = exp_avg_dtype
        self.exp_avg_sq_dtype = exp_avg_sq_dtype
        self.use_decoupled_grad = use_decoupled_grad
        self.store_param_remainders = (
            store_param_remainders and master_weights and master_weight_dtype == torch.float32
        )
        self.name_to_dtype_map = dict(
            zip(_STATES, (exp_avg_dtype, exp_avg_sq_dtype, master_weight_dtype), strict=True)
        )
        for name, dtype in self.name_to_dtype_map.items():
            if dtype not in (torch.float32, *_HALF):
                raise refusal(f"FusedAdam.{name}_dtype", f"states in {dtype}", "fp32, fp16, bf16")
        self._scales: dict[Tensor, dict[str, Tensor]] = {}
        self._make_flag()

    def initialize_state(self, param: Tensor, store_param_remainders: bool = False) -> None:
        """Make the states of one parameter."""
        state = self.state[param]
        for name in _STATES[: 3 if self.master_weights else 2]:
            remainder = store_param_remainders and name == "master_param"
            dtype = torch.int16 if remainder else self.name_to_dtype_map[name]
            state[name] = torch.zeros_like(param, dtype=dtype)
            if dtype == torch.float16:
                scale = torch.ones(1, dtype=torch.float32, device=param.device)
                self._scales.setdefault(param, {})[name] = scale
        if self.master_weights and not store_param_remainders:
            state["master_param"].copy_(param.detach().float())

    def get_unscaled_state(
        self, param: Tensor, state_name: str, skip_unscale: bool = False
    ) -> Tensor:
        """The state in fp32 (bf16 with ``skip_unscale``: as it is)."""
        state: Tensor = self.state[param][state_name]
        if state.dtype == torch.float16:
            return state.float().mul_(self._scales[param][state_name])
        if state.dtype == torch.bfloat16 and not skip_unscale:
            return state.float()
        return state

    def set_scaled_state(self, param: Tensor, state_name: str, unscaled_state: Tensor) -> None:
        """Store an fp32 state in the type kept."""
        if state_name not in self.state[param]:
            self.initialize_state(param, self._keeps_remainder(param))
        self._narrow(param, state_name, unscaled_state)

    def _keeps_remainder(self, param: Tensor) -> bool:
        return self.store_param_remainders and param.dtype == torch.bfloat16

    def _narrow(self, param: Tensor, name: str, unscaled: Tensor) -> None:
        state: Tensor = self.state[param][name]
        if state.dtype == torch.float16:
            low, high = torch.aminmax(unscaled)
            largest = torch.maximum(-low, high)
            torch.div(largest, torch.finfo(torch.float16).max / 2, out=self._scales[param][name])
            unscaled = unscaled.mul_(self._scales[param][name].reciprocal())
        state.copy_(unscaled)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """One step: a multi-tensor kernel for the 16-bit parameters, one for those in fp32."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            lists: dict[torch.dtype, list[list[Tensor]]] = {}
            widened: list[tuple[Tensor, str, Tensor]] = []
            for param in group["params"]:
                if not self.state[param]:
                    self.initialize_state(param, self._keeps_remainder(param))
                grad = self._gradient(param)
                if grad is None:
                    continue
                masters = self.master_weights and param.dtype in _HALF
                states = []
                for name in _STATES[: 3 if masters else 2]:
                    state = self.get_unscaled_state(param, name, skip_unscale=True)
                    states.append(state)
                    if state is not self.state[param][name]:
                        widened.append((param, name, state))
                columns = lists.setdefault(param.dtype, [[] for _ in range(2 + len(states))])
                for column, tensor in zip(columns, (grad, param, *states), strict=True):
                    column.append(tensor.detach())
            for columns in lists.values():
                multi_tensor_applier(multi_tensor_adam, self._dummy_overflow_buf, columns)
            for param, name, state in widened:
                self._narrow(param, name, state)
        return loss


class ApexFusedAdam(FusedAdam):
    """Apex's FusedAdam: other defaults and order of arguments, fp32 states."""

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
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            bias_correction=bias_correction,
            adam_w_mode=adam_w_mode,
            capturable=capturable,
            master_weights=master_weights,
        )


class FusedSGD(_FusedOptimizer):
    """Both libraries' FusedSGD, with fp32 momenta."""

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
        self._make_flag()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: a multi-tensor kernel for each type of parameter."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            lists: dict[torch.dtype, list[list[Tensor]]] = {}
            for param in group["params"]:
                grad = self._gradient(param)
                if grad is None:
                    continue
                state = self.state[param]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(param, dtype=torch.float32)
                columns = lists.setdefault(param.dtype, [[], [], []])
                tensors = (grad, param, state["momentum_buffer"])
                for column, tensor in zip(columns, tensors, strict=True):
                    column.append(tensor.detach())
            for columns in lists.values():
                multi_tensor_applier(multi_tensor_sgd, self._dummy_overflow_buf, columns)
        return loss
