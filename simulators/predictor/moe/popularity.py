"""How popular each expert is: its share of all routings."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainscout.simulators.predictor.question.errors import InputError, read_text

Shares = npt.NDArray[np.float64]


def count_hot(num_experts: int, hot_ratio: float) -> int:
    """How many experts are hot: the nearest whole number to their ratio."""
    return int(hot_ratio * num_experts + 0.5)


def hot_shares(
    num_experts: int, hot_ratio: float, hot_weight: float | None, generator: np.random.Generator
) -> Shares:
    """Shares (num_experts,) where hot experts together receive ``hot_weight``.

    Which experts are hot is drawn: a router's favourites have nothing to do with the node they
    live on. All are equally popular when none is hot.
    """
    hot = count_hot(num_experts, hot_ratio)
    if hot_weight is None or hot in (0, num_experts):
        return np.full(num_experts, 1 / num_experts)
    shares = np.full(num_experts, (1 - hot_weight) / (num_experts - hot))
    shares[generator.permutation(num_experts)[:hot]] = hot_weight / hot
    return shares


def check_popularity(
    num_experts: int, top_k: int, hot_ratio: float, hot_weight: float | None, prefix: str = ""
) -> None:
    """Refuse ratios that no router can have.

    A token goes to ``top_k`` different experts, so no expert can get more than one routing in
    ``top_k``, and ``h`` hot ones together no more than ``h / top_k``.

    Args:
        prefix: what stands before the names of the parameters in messages (``model.moe.``)."""
    if not 0 <= hot_ratio <= 1:
        raise InputError(f"{prefix}hot_ratio", hot_ratio, "is out of range", "0..1")
    hot = count_hot(num_experts, hot_ratio)
    if hot_weight is None:
        if hot_ratio:
            problem = "needs hot_weight, the share of all routings that hot experts receive"
            raise InputError(f"{prefix}hot_ratio", hot_ratio, problem, "0, or a hot_weight")
        return
    if not hot:
        problem = f"makes none of {num_experts} experts hot"
        allowed = f"{0.5 / num_experts:g}..1, or no hot_weight"
        raise InputError(f"{prefix}hot_ratio", hot_ratio, problem, allowed)
    least, most = hot / num_experts, min(1.0, hot / top_k)
    if not least <= hot_weight <= most:
        raise InputError(
            f"{prefix}hot_weight",
            hot_weight,
            f"is not what {hot} hot experts of {num_experts} can receive when each token goes "
            f"to {top_k} different ones",
            f"{least:.6g}..{most:.6g}",
        )


def read_histograms(path: Path) -> tuple[tuple[int, ...], ...]:
    """Measured routings of each expert, layer by layer.

    Args:
        path: a CSV file with the columns ``expert`` and ``tokens`` and, for several layers,
            ``layer``; experts count from 0, and what is left out received none.

    Raises:
        InputError: when it cannot be read, is not such a table or counts nothing.
    """
    text = read_text("histogram", path, allowed="a CSV file")
    try:
        return _counts(csv.DictReader(io.StringIO(text)), path)
    except csv.Error as error:
        raise InputError("histogram", path, f"cannot be read: {error}", "a CSV file") from error


def _counts(reader: csv.DictReader[str], path: Path) -> tuple[tuple[int, ...], ...]:
    columns = set(reader.fieldnames or ())
    if missing := {"expert", "tokens"} - columns:
        problem = f"has no column {' and no column '.join(sorted(missing))}"
        raise InputError("histogram", path, problem, "expert, tokens and if needed layer")
    counted: dict[tuple[str, int], int] = {}
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        cell = (row["layer"] if "layer" in columns else "", _whole(row["expert"], where))
        if cell in counted:
            raise InputError("histogram", where, "counts an expert of a layer twice")
        counted[cell] = _whole(row["tokens"], where)
    experts = 1 + max((expert for _, expert in counted), default=-1)
    if experts > MOST_EXPERTS:
        problem = f"has experts up to {experts - 1}"
        raise InputError("histogram", path, problem, f"0..{MOST_EXPERTS - 1}")
    layers = dict.fromkeys(layer for layer, _ in counted)
    rows = tuple(tuple(counted.get((layer, e), 0) for e in range(experts)) for layer in layers)
    if not rows or not all(map(any, rows)):
        raise InputError(
            "histogram", path, "has a layer without any token" if rows else "is empty"
        )
    return rows


MOST_EXPERTS = 4096


# More tokens than anything routes; what is longer takes Python for ever to read.
_MOST_DIGITS = 18


def _whole(text: str | None, where: str) -> int:
    if text is None or not text.strip().isdecimal() or len(text) > _MOST_DIGITS:
        text = None if text is None else text[:_MOST_DIGITS]
        raise InputError("histogram", where, f"has {text!r} where a count belongs", "0, 1, 2, ...")
    return int(text)
