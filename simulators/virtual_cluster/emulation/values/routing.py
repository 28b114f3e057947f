"""Choosing the best few, and counting the choices: what routers of experts do.

Which expert a token chooses depends on data that does not exist; how many tokens choose each is an
assumption: evenly many, or as an ``Imbalance`` says. The counts are whole numbers that add up, and
all that follows from one choice agrees with them, on every rank that routes as many tokens.
"""

from __future__ import annotations

import sys
import weakref

import torch

from trainscout.simulators.predictor.moe.popularity import MOST_EXPERTS
from trainscout.simulators.virtual_cluster.emulation.values import plain
from trainscout.simulators.virtual_cluster.emulation.values.imbalance import (
    Imbalance,
    expected_loads,
)
from trainscout.simulators.virtual_cluster.emulation.values.shadow import (
    Categories,
    Grade,
    Kind,
    Known,
    Shadow,
    multiplicity,
    total,
)


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
        if options > MOST_EXPERTS or dim != scores.dim() - 1:
            # Not a router's choice among experts: some positions of many, all alike.
            even = plain.full((1,), 1 / options, dtype=torch.float64)
            return Categories(options, even, nested)
        rows = scores.numel() // options
        skewed = self._imbalance is not None and self._imbalance.num_experts == options
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


def is_spread(shadow: Shadow | None) -> bool:
    """Whether the best of such a tensor are its non-zeros first."""
    return isinstance(shadow, Known) and shadow.kind in (Kind.SHARE, Kind.SUPPORT)


def scattered(
    tensor: torch.Tensor,
    shadow: Shadow | None,
    dim: int,
    index: torch.Tensor,
    chosen: Categories,
    source: Shadow | None,
    accumulates: bool,
) -> Known | None:
    """``tensor`` of zeros after values were put where ``index`` says along ``dim``."""
    if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE or shadow.value.any():
        return None
    if tensor.shape[dim] < chosen.number:
        return None
    # Routings over the elements of the tensor that are of one category.
    each = index.numel() * tensor.shape[dim] / max(tensor.numel(), 1)
    shares = plain.zeros(tensor.shape[dim], dtype=torch.float64)
    shares[: chosen.number] = chosen.all_shares() * each
    value = shares.reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
    if len(chosen.shares) == 1 and tensor.shape[dim] == chosen.number:
        value = value.narrow(dim, 0, 1).clone()
    one = isinstance(source, Known) and source.kind is Kind.DEFINITE
    if not one:
        return None if accumulates else Known(value, Grade.EXPECTED, Kind.SUPPORT, chosen.nested)
    assert isinstance(source, Known)
    if accumulates:
        return counted(tensor, value * source.as_mean().mean())
    if bool((source.value == 1).all()):
        return Known(value.clamp(max=1), Grade.EXPECTED, Kind.SHARE, chosen.nested)
    if source.value.numel() == 1:
        return Known(value * source.as_mean().reshape(()), Grade.EXPECTED, Kind.MEAN)
    return None


def counted(tensor: torch.Tensor, value: torch.Tensor) -> Known:
    """Sums per category: definite when each has an element of its own."""
    if value.numel() < tensor.numel():
        return Known(value, Grade.EXPECTED, Kind.MEAN)
    return Known(value.round().to(tensor.dtype), Grade.EXPECTED)


def histogram(
    tensor: torch.Tensor, chosen: Categories, bins: int, low: float, high: float
) -> torch.Tensor | None:
    """Counts of ``torch.histc``, (bins,) float64; the last bin includes its upper edge."""
    if high <= low or bins < 1:
        return None
    counts = chosen.counts(tensor.numel()).double()
    values = plain.arange(chosen.number, dtype=torch.float64)
    where = ((values - low) * bins / (high - low)).floor().long()
    where = torch.where(values == high, bins - 1, where)
    inside = (values >= low) & (values <= high)
    return torch.bincount(where[inside], counts[inside], bins)


def ones_in(mask: Shadow | None, shape: torch.Size) -> tuple[int, Grade] | None:
    """How many elements of a mask are set, and what that is worth."""
    if not isinstance(mask, Known) or mask.kind in (Kind.MEAN, Kind.RANK):
        return None
    if mask.kind is Kind.DEFINITE:
        return int((mask.value != 0).sum()) * multiplicity(mask, shape), mask.grade
    return round(total(mask, shape)), mask.grade
