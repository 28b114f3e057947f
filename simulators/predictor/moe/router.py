"""A router that sends each token to ``top_k`` different experts, as popular as declared.

Drawing experts one after the other by popularity would give hot ones less than their share,
because none can be drawn twice for a token. Systematic sampling (Madow 1949) is exact: lay
experts on a line, each as long as its expected routings per token (at most 1, ``top_k`` in all),
and take those under the points ``u, u + 1, ...`` for one random ``u`` in [0, 1). Lengths are
whole multiples of ``2**-32``, so no rounding ever yields an expert twice. On one line some
experts never meet; therefore each token takes one of several lines, in random orders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainscout.simulators.predictor.question.errors import InputError, require_whole

from .popularity import MOST_EXPERTS, Shares, check_popularity, hot_shares


def parameter(default: Any, meaning: str) -> Any:
    """A dataclass field with a default and the line of ``--help`` that explains it."""
    return field(default=default, metadata={"meaning": meaning})


Counts = npt.NDArray[np.int64]
Experts = npt.NDArray[np.int32]

_UNIT = 1 << 32
_MOST_TOKENS = 1 << 40
_MOST_LINES = 64
# Enough for sums over layers, and an eighth of the cost, of which lines are nearly all.
_LINES_OF_COUNTS = 8
# Numbers that describe all lines together: keeps thousands of experts in memory.
_MOST_PICKS = 1 << 22


@dataclass(frozen=True)
class Router:
    """What is routed. ``measured`` are routings per (layer, expert), in place of hot experts."""

    num_experts: int = parameter(8, "experts in all, spread evenly over the nodes")
    seqlen: int = parameter(4096, "tokens to route, spread evenly over the nodes")
    top_k: int = parameter(2, "different experts each token goes to")
    hot_ratio: float = parameter(0.0, "share of the experts that are hot, 0 to 1")
    hot_weight: float | None = parameter(None, "share of all routings that go to hot experts")
    seed: int = parameter(0, "same seed, same routing")
    measured: tuple[tuple[int, ...], ...] | None = None

    def check(self) -> None:
        """Refuse what no router can do."""
        for name in ("num_experts", "seqlen", "top_k"):
            require_whole(name, getattr(self, name))
        require_whole("seed", self.seed, 0)
        if self.seqlen >= _MOST_TOKENS:
            raise InputError("seqlen", self.seqlen, "is too long", f"1..{_MOST_TOKENS - 1}")
        if self.num_experts > MOST_EXPERTS:
            problem, allowed = "is too many", f"1..{MOST_EXPERTS}"
            raise InputError("num_experts", self.num_experts, problem, allowed)
        if self.top_k > self.num_experts:
            allowed = f"1..{self.num_experts}"
            raise InputError("top_k", self.top_k, "exceeds num_experts", allowed)
        check_popularity(self.num_experts, self.top_k, self.hot_ratio, self.hot_weight)
        if self.measured is not None:
            self._check_measured(self.measured)

    def _check_measured(self, measured: tuple[tuple[int, ...], ...]) -> None:
        if self.hot_weight is not None:
            problem = "cannot be given beside a measured histogram"
            raise InputError("hot_weight", self.hot_weight, problem)
        for layer, counts in enumerate(measured):
            where = f"layer {layer}"
            if len(counts) != self.num_experts:
                problem = f"does not match the {len(counts)} experts of the histogram"
                raise InputError("num_experts", self.num_experts, problem, str(len(counts)))
            if max(counts) * self.top_k > sum(counts):
                problem = (
                    f"cannot be: in {where} one expert received {max(counts)} of {sum(counts)} "
                    "routings, more than one a token"
                )
                raise InputError("top_k", self.top_k, problem, f"1..{sum(counts) // max(counts)}")


def generator_of(router: Router, layer: int) -> np.random.Generator:
    """Layers are independent of each other and of how many there are."""
    return np.random.default_rng([router.seed, layer])


def shares_of(router: Router, layer: int, generator: np.random.Generator) -> Shares:
    """Each expert's share of a layer's routings, (num_experts,); a single histogram is every
    layer's."""
    if router.measured is None:
        return hot_shares(router.num_experts, router.hot_ratio, router.hot_weight, generator)
    counts = np.array(router.measured[layer if len(router.measured) > 1 else 0], np.float64)
    shares: Shares = counts / counts.sum()
    return shares


def route(router: Router, layer: int = 0) -> Experts:
    """The experts of each token of a layer, (seqlen, top_k), different in each row.

    An expert's tokens are binomial: each token goes to it with the same probability.
    """
    generator = generator_of(router, layer)
    lines = _draw_lines(router, layer, generator, _MOST_LINES)
    points = generator.integers(0, lines.count * _UNIT, router.seqlen)
    return lines.picks[np.searchsorted(lines.starts, points, side="right") - 1]


def expert_loads(router: Router, layer: int = 0) -> Counts:
    """Routings each expert of a layer receives, (num_experts,): ``route`` without the tokens.

    Not those of the same seed's ``route``: as many are hot and each expert's are distributed as
    there, at a cost that does not depend on how many tokens there are.
    """
    generator = generator_of(router, layer)
    lines = _draw_lines(router, layer, generator, _LINES_OF_COUNTS)
    widths = np.diff(lines.starts, append=lines.count * _UNIT) / (lines.count * _UNIT)
    drawn = generator.multinomial(router.seqlen, widths)
    # Whole numbers below 2**53: exact in float64.
    weights = np.repeat(drawn, router.top_k).astype(np.float64)
    return np.bincount(lines.picks.ravel(), weights, router.num_experts).astype(np.int64)


def _lengths(shares: Shares, top_k: int) -> Counts:
    """Expected routings per token in units of 2**-32: ``top_k`` units in all, one at most each."""
    exact = shares * top_k * _UNIT
    lengths = np.minimum(np.floor(exact), _UNIT).astype(np.int64)
    # What rounding down left over goes to those that lost most and still have room.
    for expert in np.argsort(lengths - exact, kind="stable"):
        missing = top_k * _UNIT - int(lengths.sum())
        if missing == 0:
            break
        if shares[expert] > 0:
            lengths[expert] += min(missing, 1, _UNIT - int(lengths[expert]))
    return lengths


@dataclass(frozen=True, eq=False)
class _Lines:
    """Lines laid end to end, 2**32 points each: from each of ``starts``, (segments,), on it is
    the same experts that are taken, ``picks`` (segments, top_k)."""

    count: int
    starts: Counts
    picks: Experts


def _draw_lines(router: Router, layer: int, generator: np.random.Generator, most: int) -> _Lines:
    experts, top_k = router.num_experts, router.top_k
    lengths = _lengths(shares_of(router, layer, generator), top_k)
    count = max(1, min(most, _MOST_PICKS // (experts * top_k)))
    orders = generator.permuted(np.tile(np.arange(experts), (count, 1)), axis=1)
    ends = np.cumsum(lengths[orders], axis=1)
    # The choice changes where an expert ends; the last ends at a whole number, so 0 is a start.
    starts = np.sort(ends % _UNIT, axis=1)
    points = starts[:, :, None] + np.arange(top_k) * _UNIT
    # One search for all lines: they are far enough apart not to meet.
    apart = np.arange(count)[:, None] * (top_k * _UNIT)
    found = np.searchsorted((ends + apart).ravel(), (points + apart[:, :, None]).ravel(), "right")
    picks = orders.ravel()[found].reshape(count * experts, top_k)
    laid = starts + np.arange(count)[:, None] * _UNIT
    return _Lines(count, laid.ravel(), picks.astype(np.int32))
