"""What is known of a tensor whose data does not exist.

A shadow is compact: its ``value`` has the tensor's number of dimensions, and size 1 along those
where elements are equal (known) or exchangeable (expected): tokens, in a routing mask.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import torch

from . import plain


def apportion(shares: torch.Tensor) -> torch.Tensor:
    """Whole numbers nearest to ``shares`` that sum to their rounded sum (largest remainder).

    Rounding each alone would lose or invent tokens. Equal remainders go to the lower index, so
    every rank that apportions the same shares gets the same numbers.

    Args:
        shares: any shape, float64, not negative.

    Returns:
        The same shape, int64.
    """
    flat = shares.reshape(-1)
    # Sums of products like 0.3 * 10 fall short of a whole number by rounding errors.
    near = flat.round()
    flat = torch.where((flat - near).abs() < 1e-6, near, flat)
    whole = flat.floor()
    missing = int((flat.sum() - whole.sum()).round())
    counts = whole.to(torch.int64)
    if missing > 0:
        order = torch.argsort(whole - flat, stable=True)
        counts[order[:missing]] += 1
    return counts.reshape(shares.shape)


class Grade(enum.IntEnum):
    """What a value is worth; what is computed from several is worth as little as the worst."""

    UNKNOWN = 0
    INVENTED = 1
    EXPECTED = 2
    EXACT = 3

    @property
    def label(self) -> str:
        """As in ``ValueRead.grade``."""
        return self.name.lower()


class Kind(enum.Enum):
    """How ``Known.value`` describes the elements."""

    DEFINITE = "each element has this value"
    SHARE = "elements are 0 or 1, this share of them 1"
    MEAN = "elements have this mean"
    RANK = "elements count, along the dimension, those so far that are in this share"
    SUPPORT = "this share of the elements is not 0; what else they are is unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Values or their expectation. ``value`` is of the tensor's dtype, float64 if a fraction of
    whole numbers. ``nested``: a share whose ones were chosen among another's first, so the
    overlap of the two is the smaller one and not their product. ``beyond``: of a mask up to so
    many zeros of another, the share that it adds to that other."""

    value: torch.Tensor
    grade: Grade
    kind: Kind = Kind.DEFINITE
    nested: bool = False
    beyond: torch.Tensor | None = None

    def as_mean(self) -> torch.Tensor:
        """The mean of each element, float64, compact."""
        return self.value.to(torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Categories:
    """Whole numbers 0, 1, ... in no known order, of which each category's share is known: the
    experts that tokens chose. ``shares``, (number,) or (1,) if all are alike, float64, sum to 1
    over all categories. ``nested`` as in ``Known``. ``lowest``: the first of the numbers, -1 where
    some stand for no choice."""

    number: int
    shares: torch.Tensor
    nested: bool = False
    lowest: int = 0

    grade = Grade.EXPECTED

    def all_shares(self) -> torch.Tensor:
        """(number,)."""
        return self.shares.expand(self.number) if len(self.shares) == 1 else self.shares

    def numbers(self) -> torch.Tensor:
        """(number,) int64."""
        return plain.arange(self.lowest, self.lowest + self.number)

    def chosen(self) -> Categories:
        """Those that stand for a choice."""
        shares = self.all_shares()[-self.lowest :]
        return Categories(len(shares), shares / shares.sum(), self.nested)

    def without(self, share: float) -> Categories:
        """The same where so many stand for no choice."""
        if share < 1e-9:
            return self
        shares = torch.cat(
            [plain.full((1,), share, dtype=torch.float64), self.all_shares() * (1 - share)]
        )
        return Categories(self.number + 1, shares, self.nested, lowest=-1)

    def owned(self, position: int, size: int) -> Categories:
        """Those of one of ``size`` ranks that each own equally many neighbours, as of experts; all
        where they cannot be dealt out so."""
        each, rest = divmod(self.number, size)
        shares = self.all_shares().clone()
        shares[: position * each] = 0
        shares = shares[: (position + 1) * each]
        if rest or self.lowest or not float(shares.sum()):
            return self
        return Categories(len(shares), shares / shares.sum(), self.nested)

    def counts(self, elements: int) -> torch.Tensor:
        """How many of ``elements`` are of each category, (number,) int64. Fewer elements than
        categories lie where equal parts of all shares have their middles: the first few would be
        neighbours, and the first rank's."""
        shares = self.all_shares() * elements
        if elements >= self.number:
            return apportion(shares)
        ends = (shares.cumsum(0) + 0.5 - 1e-6).floor().long()
        ends[-1] = elements
        return ends.diff(prepend=plain.zeros(1, dtype=torch.int64))


@dataclass(frozen=True, slots=True)
class Missing:
    """Not known, and ``hint`` says why and what would make it known."""

    hint: str

    grade = Grade.UNKNOWN


Shadow = Known | Categories | Missing


def multiplicity(known: Known, shape: torch.Size) -> int:
    """How many elements each of ``known.value`` stands for."""
    return int(math.prod(shape) // max(math.prod(known.value.shape), 1))


def total(known: Known, shape: torch.Size) -> float:
    """The sum, or its expectation, over all elements."""
    return float(known.as_mean().sum()) * multiplicity(known, shape)


def compact(value: torch.Tensor) -> torch.Tensor:
    """Without the repetitions that ``expand`` made."""
    for dim in range(value.dim()):
        if value.shape[dim] > 1 and value.stride(dim) == 0:
            value = value.narrow(dim, 0, 1)
    return value


def materialise(shadow: Known | Categories, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Elements that are as the shadow says: ones and categories as often as their share."""
    if isinstance(shadow, Categories):
        return _in_turn(shadow, shape).to(dtype)
    if shadow.kind is Kind.DEFINITE:
        return shadow.value.expand(shape).to(dtype, copy=True)
    means = shadow.as_mean().expand(shape)
    if dtype.is_floating_point and shadow.kind is Kind.MEAN:
        return means.to(dtype, copy=True)
    # The running sum of the means, rounded, rises by one wherever a one is due: along the
    # exchangeable elements first, so each group of them has its own share of ones.
    folded = [d for d in range(len(shape)) if shadow.value.shape[d] == 1]
    kept = [d for d in range(len(shape)) if d not in folded]
    ordered = means.permute([*kept, *folded])
    steps = ordered.reshape(*[shape[d] for d in kept], -1).cumsum(-1)
    steps = torch.floor(steps + 1e-9)
    ones = torch.diff(steps, dim=-1, prepend=torch.zeros_like(steps[..., :1]))
    back = ones.reshape(ordered.shape).permute(plain.tensor([*kept, *folded]).argsort().tolist())
    return back.to(dtype)


def _in_turn(shadow: Categories, shape: torch.Size) -> torch.Tensor:
    counts = shadow.counts(shape.numel())
    ordered = torch.repeat_interleave(shadow.numbers(), counts)
    if len(shape) < 2:
        return ordered.reshape(shape)
    # Down the columns: no category comes more often than there are rows, so rows do not repeat.
    rows = shape.numel() // shape[-1]
    return ordered.reshape(shape[-1], rows).T.reshape(shape)


def downgraded(shadow: Known, grade: Grade) -> Known:
    """Worth no more than ``grade``."""
    return replace(shadow, grade=min(shadow.grade, grade))
