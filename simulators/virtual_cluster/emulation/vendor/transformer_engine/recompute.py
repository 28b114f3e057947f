"""``te.pytorch.checkpoint`` and the random states that make a second forward pass equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.state import (
    FP8GlobalStateManager,
    fp8_autocast,
)


class CudaRNGStatesTracker:
    """Named random states of the device."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all states."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Any]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Make a state from a seed; neither may be known already."""
        if seed in self.seeds_:
            raise RuntimeError(f"seed {seed} already exists")
        if name in self.states_:
            raise RuntimeError(f"cuda rng state {name} already exists")
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Draw from a named state inside."""
        if name not in self.states_:
            raise KeyError(f"cuda rng state {name} is not added")
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)


def is_fp8_activation_recompute_enabled() -> bool:
    """Whether a checkpoint is open in an 8-bit region."""
    return FP8GlobalStateManager.recomputes


def in_fp8_activation_recompute_phase() -> bool:
    """Whether a checkpoint runs for the second time."""
    return FP8GlobalStateManager.recomputing


def activation_recompute_forward(
    activation_recompute: bool = False, recompute_phase: bool = False
) -> Any:
    """Tells modules inside which of a checkpoint's two runs this is."""
    return FP8GlobalStateManager.recomputation(activation_recompute, recompute_phase)


def get_all_rng_states() -> dict[str, Any]:
    """States shared with graphs: none, as graphs are not captured."""
    return {}


class _Checkpoint(torch.autograd.Function):
    """Keeps the tensor arguments, and runs the function again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Any], tracker: Any, keywords: Any, *arguments: Any
    ) -> Any:
        ctx.function, ctx.tracker, ctx.keywords = function, tracker, keywords
        ctx.random = torch.get_rng_state(), torch.cuda.get_rng_state()
        ctx.tracked = tracker().get_states() if tracker is not None else None
        ctx.autocast = (
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
        )
        with torch.no_grad(), activation_recompute_forward(True, False):
            outputs = function(*arguments, **keywords)
        ctx.others = [None if isinstance(each, Tensor) else each for each in arguments]
        ctx.save_for_backward(*[each if isinstance(each, Tensor) else None for each in arguments])
        ctx.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        ctx.recipe = FP8GlobalStateManager.get_fp8_recipe() if ctx.fp8 else None
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = [
            other if tensor is None else tensor.detach().requires_grad_(tensor.requires_grad)
            for tensor, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        now = torch.get_rng_state(), torch.cuda.get_rng_state()
        tracked = ctx.tracker().get_states() if ctx.tracker is not None else None
        _restore(ctx.random, ctx.tracker, ctx.tracked)
        enabled, dtype = ctx.autocast
        with (
            torch.enable_grad(),
            torch.autocast("cuda", dtype=dtype, enabled=enabled),
            activation_recompute_forward(True, True),
            fp8_autocast(enabled=ctx.fp8, fp8_recipe=ctx.recipe),
        ):
            outputs = ctx.function(*arguments, **ctx.keywords)
        _restore(now, ctx.tracker, tracked)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        torch.autograd.backward([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        grads = tuple(each.grad if isinstance(each, Tensor) else None for each in arguments)
        return (None, None, None, *grads)


def _restore(random: Any, tracker: Any, tracked: Any) -> None:
    torch.set_rng_state(random[0])
    torch.cuda.set_rng_state(random[1])
    if tracker is not None:
        tracker().set_states(tracked)


def checkpoint(
    function: Callable[..., Any],
    *arguments: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: Any = None,
    use_reentrant: bool = True,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    **keywords: Any,
) -> Any:
    """Run a function without keeping what its backward needs, and again then."""
    if distribute_saved_activations:
        raise refusal("distribute_saved_activations", "inputs shared out over ranks", "False")
    if not use_reentrant or context_fn is not None:
        raise refusal("te.checkpoint.use_reentrant", "checkpoints by hooks", "True, no context_fn")
    if not torch.is_grad_enabled():
        return function(*arguments, **keywords)
    return _Checkpoint.apply(function, get_rng_state_tracker, keywords, *arguments)
