"""``te.pytorch.checkpoint`` and the random states that make a second forward pass equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

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
    tracker = get_rng_state_tracker() if get_rng_state_tracker is not None else None
    before = tracker.get_states() if tracker is not None else None
    enabled = FP8GlobalStateManager.is_fp8_enabled()
    recipe = FP8GlobalStateManager.get_fp8_recipe() if enabled else None

    def run(*given: Any) -> Any:
        # The first run is without gradients.
        if not torch.is_grad_enabled():
            with activation_recompute_forward(True, False):
                return function(*given, **keywords)
        now = tracker.get_states() if tracker is not None else None
        if tracker is not None:
            tracker.set_states(before)
        with activation_recompute_forward(True, True), fp8_autocast(enabled, fp8_recipe=recipe):
            outputs = function(*given, **keywords)
        if tracker is not None:
            tracker.set_states(now)
        return outputs

    return torch.utils.checkpoint.checkpoint(run, *arguments, use_reentrant=True)
