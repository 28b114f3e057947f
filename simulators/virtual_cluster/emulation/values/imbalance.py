"""How many tokens each expert gets: evenly, or as popular as declared."""

from __future__ import annotations

import sys
import weakref
from functools import lru_cache

import torch

from trainscout.simulators.predictor.moe.popularity import MOST_EXPERTS
from trainscout.simulators.predictor.moe.router import generator_of, shares_of
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance

from . import plain
from .shadow import Categories, apportion


@lru_cache(maxsize=4096)
def expected_loads(
    imbalance: Imbalance | None, num_experts: int, top_k: int, tokens: int, layer: int = 0
) -> torch.Tensor:
    """Tokens each expert of a layer gets from ``tokens`` tokens, (num_experts,) int64.

    They sum to ``tokens * top_k`` exactly and none exceeds ``tokens``, since a token goes to an
    expert at most once. Even without an imbalance, or when it is about another number of
    experts. Every rank gets the same numbers from as many tokens.

    Raises:
        InputError: for experts that cannot be so popular when each token goes to ``top_k``, or
            a histogram of fewer layers.
    """
    shares = plain.full((num_experts,), 1 / num_experts, dtype=torch.float64)
    if imbalance is not None and imbalance.num_experts == num_experts:
        router = imbalance.router(top_k)
        router.check()
        if imbalance.histogram is not None and 1 < len(imbalance.histogram) <= layer:
            problem = f"has {len(imbalance.histogram)} layers, but a rank ran router {layer + 1}"
            raise InputError("moe_imbalance", "histogram", problem, "one layer for all, or more")
        shares = torch.from_numpy(shares_of(router, layer, generator_of(router, layer))).clone()
    return apportion(shares * tokens * top_k)


class Routers:
    """The routers of a rank, numbered in the order in which they first run.

    The same module is the same router in every micro-batch and when recomputed, so it chooses
    the same then; and ranks that run the same modules number them alike.
    """

    def __init__(self, imbalance: Imbalance | None) -> None:
        self._imbalance = imbalance
        self._modules: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
            weakref.WeakKeyDictionary()
        )
        self._next = 0

    def restart(self) -> None:
        """Number from the first again: another model is built."""
        self._modules.clear()
        self._next = 0

    def choose(self, scores: torch.Tensor, dim: int, number: int, nested: bool) -> Categories:
        """Each row's ``number`` best along ``dim``."""
        options = scores.shape[dim]
        even = plain.full((1,), 1 / max(options, 1), dtype=torch.float64)
        if options > MOST_EXPERTS or dim != scores.dim() - 1:
            # Not a router's choice among experts: some positions of many, all alike.
            return Categories(options, even, nested)
        rows = scores.numel() // options
        skewed = self._imbalance is not None and self._imbalance.num_experts == options
        if rows * number < options and not skewed:
            loads = Categories(options, even).counts(rows * number)
        else:
            layer = self._layer() if skewed else 0
            loads = expected_loads(self._imbalance, options, number, rows, layer)
        return Categories(options, loads.double() / max(rows * number, 1), nested)

    def _layer(self) -> int:
        frame = sys._getframe(1)
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, torch.nn.Module):
                if module not in self._modules:
                    self._modules[module] = self._next
                    self._next += 1
                return self._modules[module]
            frame = frame.f_back  # type: ignore[assignment]
        return 0
