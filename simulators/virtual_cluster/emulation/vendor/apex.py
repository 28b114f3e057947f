"""Apex's own Python, where this machine has none: norms, fused optimizers, parallel."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .compiled_kernels import (
    backward_affine,
    forward_affine,
    multi_tensor_adagrad,
    multi_tensor_adam,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_lamb,
    multi_tensor_sgd,
    rms_backward_affine,
    rms_forward_affine,
)
from .kernels import kernel
from .opaque import differentiable, elementwise
from .refuse import refusal


@differentiable
def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Layer norm over the trailing ``normalized_shape``. Keeps input (``memory_efficient``:
    output), weight, bias and the statistics."""
    input = input.contiguous()
    out, mean, rsigma = forward_affine(input, normalized_shape, weight, bias, eps)

    def gradient(
        kept: Tensor, weight: Tensor, _: Any, mean: Any, rsigma: Tensor, grad: Any
    ) -> Any:
        return backward_affine(grad.contiguous(), mean, rsigma, kept, normalized_shape, weight)

    statistics = [None if memory_efficient else mean, rsigma]
    return out, [out if memory_efficient else input, weight, bias, *statistics], gradient


@differentiable
def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """RMS norm over the trailing ``normalized_shape``; keeps what a layer norm does."""
    input = input.contiguous()
    out, rsigma = rms_forward_affine(input, normalized_shape, weight, eps)

    def gradient(kept: Tensor, weight: Tensor, rsigma: Tensor, grad: Tensor) -> Any:
        return rms_backward_affine(grad.contiguous(), rsigma, kept, normalized_shape, weight)

    return out, [out if memory_efficient else input, weight, rsigma], gradient


def fused_rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMS norm without weights, as PyTorch's own kernel has it."""
    return nn.functional.rms_norm(input, normalized_shape, eps=eps)


@differentiable
def _fast_layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, memory_efficient: bool = False
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """The persistent kernel: works on rows, so that its result is a view of them."""
    rows = x.contiguous().view(-1, gamma.numel())
    args = (rows, gamma, beta, gamma.shape, epsilon, memory_efficient)
    out, kept, of_rows = fused_layer_norm_affine.forward(*args)
    whole, width = x.shape, gamma.numel()

    def gradient(*args: Any) -> tuple[Tensor, ...]:
        *kept, grad = args
        made, *others = of_rows(*kept, grad.contiguous().view(-1, width))
        return made.view(whole), *others

    return out.view(whole), kept, gradient


def _rotated(t: Tensor, freqs: Tensor, layout: str) -> tuple[Tensor, list[Tensor], Any]:
    def gradient(freqs: Tensor, grad: Tensor) -> Tensor:
        made: Tensor = kernel("rope_bwd")(grad, freqs, layout, False)
        return made

    return kernel("rope_fwd")(t, freqs, layout, False), [freqs], gradient


@differentiable
def fused_apply_rotary_pos_emb(
    t: Tensor, freqs: Tensor, transpose_output_memory: bool = False
) -> tuple[Tensor, list[Tensor], Any]:
    """Rotary positions of ``[sequence, batch, head, column]``, by angles."""
    return _rotated(t, freqs, "sbhd")


@differentiable
def fused_apply_rotary_pos_emb_thd(
    t: Tensor, cu_seqlens: Tensor, freqs: Tensor
) -> tuple[Tensor, list[Tensor], Any]:
    """Rotary positions of packed sequences."""
    return _rotated(t, freqs, "thd")


def fused_apply_rotary_pos_emb_cached(
    t: Tensor, cos_: Tensor, sin_: Tensor, transpose_output_memory: bool = False
) -> Tensor:
    """Rotary positions by cosines and sines."""
    return elementwise("rotary", t, cos_, sin_)


FusedLayerNormAffineFunction = fused_layer_norm_affine
FusedRMSNormAffineFunction = fused_rms_norm_affine
FastLayerNormFN = _fast_layer_norm


class _Norm(nn.Module):
    """As Apex's begin, and as models that begin their own weights ask them to."""

    def reset_parameters(self) -> None:
        """Ones for weights, zeros for biases."""
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, float(name == "weight"))


class FusedRMSNorm(_Norm):
    """``apex.normalization.FusedRMSNorm``; only the affine form, which transformers use."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **factory: Any,
    ) -> None:
        super().__init__()
        if not elementwise_affine:
            raise refusal("apex.normalization", "norms without weights", "elementwise_affine=True")
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (int(normalized_shape),)
        self.normalized_shape = torch.Size(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.ones(self.normalized_shape, **factory))

    def forward(self, input: Tensor) -> Tensor:
        rest = (self.normalized_shape, self.eps, self.memory_efficient)
        return fused_rms_norm_affine(input, self.weight, *rest)


class FusedLayerNorm(FusedRMSNorm):
    """``apex.normalization.FusedLayerNorm``."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.bias = nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, input: Tensor) -> Tensor:
        rest = (self.normalized_shape, self.eps, self.memory_efficient)
        return fused_layer_norm_affine(input, self.weight, self.bias, *rest)


_TAKEN = ("normalized_shape", "eps", "elementwise_affine", "memory_efficient")


class MixedFusedLayerNorm(FusedLayerNorm):
    """The mixed forms differ in what types they take and give, which is that of the weight here,
    and pass over what else they are given, as Apex's do."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{name: named[name] for name in _TAKEN if name in named})


class MixedFusedRMSNorm(FusedRMSNorm):
    """See ``MixedFusedLayerNorm``."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{name: named[name] for name in _TAKEN if name in named})


class FastLayerNorm(_Norm):
    """``apex.contrib.layer_norm.FastLayerNorm``."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False
    ) -> None:
        super().__init__()
        self.epsilon, self.memory_efficient = eps, memory_efficient
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return FastLayerNormFN(x, self.weight, self.bias, self.epsilon, self.memory_efficient)


# Fused optimizers: one multi-tensor kernel for each list. States are made at the first step, in
# fp32, as the real optimizers do; which tensors go into one call follows their types.
# Hyperparameters decide nothing that costs time.

_HALF = (torch.float16, torch.bfloat16)
# What scripts may read of a group; the others are off.
_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0}
_ON = ("adam_w_mode", "bias_correction", "set_grad_none")


class _FusedOptimizer(torch.optim.Optimizer):
    """What all share: a skip flag on the device, and a kernel for each type of parameter.

    ``settings``: what the constructor takes behind the parameters, in order; ``states``: what is
    kept of a parameter, in the order of the kernel.
    """

    kernel: Callable[..., Any]
    settings: str
    states: tuple[str, ...]

    def __init__(self, params: Iterable[Any], *args: Any, **named: Any) -> None:
        names = self.settings.split()
        given = {name: _DEFAULTS.get(name, name in _ON) for name in names}
        by_place = dict(zip(names, args, strict=False))
        given |= {**by_place, **named}
        if unknown := set(given) - set(names):
            raise TypeError(f"{type(self).__name__} takes no {', '.join(sorted(unknown))}")
        if len(args) > len(names) or by_place.keys() & named.keys():
            raise TypeError(f"{type(self).__name__} takes {self.settings!r} once each")
        if given.get("amsgrad"):
            raise RuntimeError(f"{type(self).__name__} does not support the AMSGrad variant.")
        if given.get("capturable"):
            name = f"{type(self).__name__}.capturable"
            raise refusal(name, "CUDA graphs are not captured", "False")
        super().__init__(params, given)
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int, device="cuda")
        self.adam_w_mode = 1 if given.get("adam_w_mode") else 0
        self.master_weights, self.capturable = bool(given.get("master_weights")), False

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients unless ``set_to_none`` is False."""
        super().zero_grad(set_to_none=set_to_none is not False)

    def make_states(self, param: Tensor) -> dict[str, Tensor]:
        """The states of one parameter, in the order of the kernel."""
        made = {name: torch.zeros_like(param, dtype=torch.float32) for name in self.states}
        if self.master_weights and param.dtype in _HALF:
            made["master_param"] = param.detach().float()
        return made

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

    kernel, states = multi_tensor_adam, ("exp_avg", "exp_avg_sq")
    settings = (
        "lr bias_correction betas eps adam_w_mode weight_decay amsgrad set_grad_none capturable "
        "master_weights"
    )


class FusedSGD(_FusedOptimizer):
    """``apex.optimizers.FusedSGD``, with fp32 momenta."""

    kernel, states = multi_tensor_sgd, ("momentum_buffer",)
    settings = (
        "lr momentum dampening weight_decay nesterov wd_after_momentum materialize_master_grads "
        "set_grad_none"
    )


class FusedLAMB(_FusedOptimizer):
    """``apex.optimizers.FusedLAMB``: norms of all gradients before the kernel."""

    kernel, states = multi_tensor_lamb, ("exp_avg", "exp_avg_sq")
    settings = (
        "lr bias_correction betas eps weight_decay amsgrad adam_w_mode grad_averaging "
        "set_grad_none max_grad_norm use_nvlamb"
    )

    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """Norms of each type's gradients, and a kernel for each type of parameter."""
        weights = [weight for group in self.param_groups for weight in group["params"]]
        found: dict[torch.dtype, list[Tensor]] = {}
        for gradient in (each.grad for each in weights if each.grad is not None):
            found.setdefault(gradient.dtype, []).append(gradient.detach())
        for gradients in found.values():
            multi_tensor_applier(multi_tensor_l2norm, self._dummy_overflow_buf, [gradients], False)
        return super().step(closure, grad_scaler)


class FusedAdagrad(_FusedOptimizer):
    """``apex.optimizers.FusedAdagrad``."""

    kernel, states = multi_tensor_adagrad, ("sum",)
    settings = "lr eps weight_decay set_grad_none adagrad_w_mode"


class LARC:
    """Rates of layers by the norms of their parameters and gradients (You et al. 2017).

    Args:
        optimizer: steps with the gradients that are scaled here.
        trust_coefficient: rate times norm of the gradient per norm of the parameter.
        clip: no layer's rate becomes larger than the optimizer's.
    """

    def __init__(
        self, optimizer: Any, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8
    ) -> None:
        self.optim = optimizer
        self.trust_coefficient, self.clip, self.eps = trust_coefficient, clip, eps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optim"], name)

    def step(self) -> None:
        """Scale all gradients, with the decay of weights in them, and step."""
        decays = []
        with torch.no_grad():
            for group in self.optim.param_groups:
                decays.append(group.get("weight_decay", 0))
                group["weight_decay"] = 0
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._scale(parameter, decays[-1], group["lr"])
        self.optim.step()
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def _scale(self, parameter: Any, decay: float, rate: float) -> None:
        size, slope = torch.norm(parameter), torch.norm(parameter.grad)
        if size == 0 or slope == 0:
            return
        own = self.trust_coefficient * size / (slope + size * decay + self.eps)
        if self.clip:
            own = min(own / rate, 1)
        parameter.grad.add_(parameter, alpha=decay).mul_(own)


def convert_syncbn_model(module: Any, process_group: Any = None, **_: Any) -> Any:
    """The module with batch norms whose statistics are those of all ranks."""
    return torch.nn.SyncBatchNorm.convert_sync_batchnorm(module, process_group)


def create_syncbn_process_group(group_size: int) -> Any:
    """This rank's group of so many neighbours, None for all ranks."""
    if not group_size:
        return None
    made = [
        dist.new_group(range(first, first + group_size))
        for first in range(0, dist.get_world_size(), group_size)
    ]
    return made[dist.get_rank() // group_size]


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """Torch's; how Apex's cuts its buckets is not followed."""

    def __init__(self, module: Any, *_: Any, **__: Any) -> None:
        super().__init__(module)
