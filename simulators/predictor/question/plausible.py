"""Values that no machine and no run has, and what was likely meant: another unit, mostly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    from trainscout.simulators.predictor.question.question import Question

# Beyond what anybody trained with: published steps have up to 0.13 billion tokens.
_MOST_TOKENS_A_STEP = 1e9


class Limit(NamedTuple):
    """What a quantity lies between, zero aside, its unit, and the units that people mix it up
    with, as parts of it."""

    least: float
    most: float
    unit: str
    others: tuple[float, ...]


_BILLIONS = (1e9, 1e12, 1e6)
LIMITS = {
    "cluster.nic_gbps": Limit(0.5, 2e4, "Gb/s", (1e-9, 1e-6, 1e-3, 1e3)),
    "gpu.memory_bytes": Limit(1e8, 1e13, "bytes", _BILLIONS),
    "gpu.memory_bandwidth_bytes_per_s": Limit(1e11, 1e14, "bytes/s", _BILLIONS),
    "gpu.nvlink_bytes_per_s": Limit(1e9, 1e13, "bytes/s", _BILLIONS),
    "gpu.pcie_bytes_per_s": Limit(1e8, 1e13, "bytes/s", _BILLIONS),
    "gpu.peak_flops": Limit(1e11, 1e17, "FLOP/s", (1e12, 1e9)),
    "gpu.price_usd_per_hour": Limit(1e-4, 50.0, "US dollars an hour of one GPU", (1e-2,)),
    "training.tokens": Limit(1e5, 1e17, "tokens", _BILLIONS),
}


def check_plausible(question: Question) -> None:
    """Refuse what must be in another unit than its field.

    Raises:
        InputError: naming the field, and the value that was likely meant.
    """
    for field, name, value in _quantities(question):
        limit = LIMITS[name]
        if value and not limit.least <= value <= limit.most:
            meant = (value * factor for factor in limit.others)
            found = next((each for each in meant if limit.least <= each <= limit.most), None)
            problem = f"is implausible in {limit.unit}"
            allowed = f"{limit.least:g}..{limit.most:g}"
            nearest = None if found is None else f"{found:g}"
            raise InputError(field, value, problem, allowed, nearest)
    training = question.training
    sequences = training.global_batch_size
    length = training.sequence_length or question.model.sequence_length
    if sequences * length > _MOST_TOKENS_A_STEP:
        problem = f"is in sequences, and so many of {length:,} tokens are beyond any run"
        near = str(max(1, round(sequences / length)))
        most = f"1..{int(_MOST_TOKENS_A_STEP / length)}"
        raise InputError("training.global_batch_size", sequences, problem, most, near)


def _quantities(question: Question) -> Iterator[tuple[str, str, float]]:
    """Field as a user writes it, name in ``LIMITS``, value."""
    for name in LIMITS:
        part, _, field = name.partition(".")
        value = getattr(getattr(question, part), field)
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", name, each) for key, each in value.items())
        else:
            yield name, name, value
