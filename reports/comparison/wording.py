"""Fields of recipes and signed quantities in the words people read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainscout.reports.wording import format_seconds
from trainscout.simulators.predictor.question.recipe import KNOBS, details_of

# Below this a difference is rounding.
_NOTHING_S = 1e-9
_DETAILS = details_of("recompute")


def format_value(field: str, value: Any) -> str:
    if value is None:
        return KNOBS[field].left_out
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def format_change(fields: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> str:
    """``vpp 1 -> 8``, several joined by ``, ``; what is recomputed with its details."""
    old, new = (dict(zip(fields, values, strict=True)) for values in (before, after))
    words = []
    if "recompute" in old:
        words.append(f"recompute {_format_recompute(old)} -> {_format_recompute(new)}")
    words += [
        f"{field} {format_value(field, old[field])} -> {format_value(field, new[field])}"
        for field in fields
        if not ("recompute" in old and field in ("recompute", *_DETAILS))
    ]
    return ", ".join(words)


def _format_recompute(values: dict[str, Any]) -> str:
    """``full(1 layer)``, ``selective(mlp)``; details that mean nothing are left out."""
    kind, layers = values["recompute"], values.get("recompute_layers")
    modules, taper = values.get("recompute_modules"), values.get("recompute_taper")
    detail = modules if kind == "selective" else ""
    if kind == "full":
        detail = f"{layers} a chunk" if layers is not None else ""
        detail += f" taper {taper}" if taper else ""
    return f"{kind}({detail.strip()})" if detail else str(kind)


def signed_seconds(seconds: float) -> str:
    """Seconds with their sign, ``-`` and ``+``, in the units of ``format_seconds``."""
    if abs(seconds) < _NOTHING_S:
        return "0"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def signed_gib(count_bytes: float) -> str:
    words = f"{count_bytes / 2**30:+.1f}"
    return "0" if not words.strip("+-0.") else words


def signed_percent(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


@dataclass(frozen=True)
class Unit:
    """The unit of a table's seconds, and how many of its decimals mean something."""

    name: str
    per_second: float
    decimals: int

    @staticmethod
    def of(step_s: float) -> Unit:
        """For differences between steps of about ``step_s`` seconds: four digits of the step."""
        name, per_second = ("s", 1.0) if step_s >= 1 else ("ms", 1e3)
        whole = math.floor(math.log10(step_s * per_second)) + 1
        return Unit(name, per_second, max(0, 4 - whole))

    def signed(self, seconds: float) -> str:
        """The number alone, with its sign."""
        words = f"{seconds * self.per_second:+.{self.decimals}f}"
        return "0" if not words.strip("+-0.") else words
