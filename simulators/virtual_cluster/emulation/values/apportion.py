"""Fractions to whole numbers without losing any: what is shared out adds up."""

from __future__ import annotations

import torch


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
