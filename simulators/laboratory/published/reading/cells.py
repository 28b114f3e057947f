"""What a cell of the table of runs means: a number, a switch, words, or nothing."""

from __future__ import annotations

import math
import re

from .units import sequences_of, tokens_in, with_unit

# Ways to write "not published". For words, "none" is an answer (``recompute``).
_BLANK_WORDS = frozenset(("", "-", "--", "na", "n/a", "#n/a", "nan", "null"))
_BLANK_NUMBERS = _BLANK_WORDS | {"none"}
_SWITCHES = ("sp", "gated_mlp", "tp_overlap", "grad_overlap")
_SWITCH_WORDS = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "on"), 1),
    **dict.fromkeys(("0", "0.0", "false", "no", "off"), 0),
}
_MAY_BE_ZERO = ("num_dense_layers",)
# What a printed zero stands for where a model or a layout has none of something.
_ZERO_MEANS = {
    "num_experts": None,
    "topk": None,
    "moe_ffn_hidden": None,
    "num_query_groups": None,
    "inter_link_gbps_per_gpu": None,
    "etp": None,
    "ep": 1,
    "cp": 1,
    "vpp": 1,
}
# Far beyond any published run, near enough that arithmetic on it stays exact and quick.
_LARGEST_WHOLE = 10**9
_LARGEST = {
    "num_layers": 1000,
    "hidden": 10**6,
    "ffn_hidden": 10**6,
    "moe_ffn_hidden": 10**6,
    "vocab": 10**7,
    "seq_len": 10**8,
    "pp": 1000,
    "vpp": 1000,
    "num_experts": 10**5,
    "num_gpus": 10**6,
    "measured_mfu": 100,
}
_SMALLEST = {"measured_mfu": 1}
_SMALLEST_REAL, _LARGEST_REAL = 1e-9, 1e15
_UNITS = {"measured_mfu": "percent, not a fraction"}
_GROUPED = re.compile(r"[+-]?\d{1,3}([,' _]\d{3})+(\.\d*)?")


class CellError(Exception):
    """Raised for a cell that cannot be meant; the message says why and what is allowed."""


def words_in(text: str) -> str:
    """The words of a cell, "" where it says that nothing was published."""
    text = text.strip()
    return "" if text.lower() in _BLANK_WORDS else text


def number_in(column: str, text: str, *, whole: bool) -> float | int | None:
    """The number in a cell, in the column's unit; None where nothing was published.

    Raises:
        CellError: for words, digits grouped by thousands, or a number out of range.
    """
    text = text.strip()
    if text.lower() in _BLANK_NUMBERS:
        return None
    if column in _SWITCHES:
        if text.lower() not in _SWITCH_WORDS:
            raise CellError("is not a switch (allowed: 0, 1, true, false, or blank)")
        return _SWITCH_WORDS[text.lower()]
    if _GROUPED.fullmatch(text):
        raise CellError("has a thousands separator (allowed: digits and one decimal point)")
    value = _plain(text)
    if value is None:
        value = with_unit(column, text)
    value = math.nan if value is None else value
    if value == 0 and column in _ZERO_MEANS:
        return _ZERO_MEANS[column]
    if not _in_range(column, value, whole=whole):
        raise CellError(f"is not usable (allowed: {_allowed(column, whole=whole)}, or blank)")
    return int(value) if whole else value


def is_plain(column: str, text: str) -> bool:
    """Whether a cell holds a number and nothing else, or a switch."""
    return column in _SWITCHES or _plain(text) is not None


def batch_in(column: str, text: str, seq_len: int | None) -> int | None:
    """The sequences of a batch given in tokens; None for a cell that gives none.

    Raises:
        CellError: for tokens that are no whole number of sequences.
    """
    tokens = tokens_in(column, text.strip())
    if not tokens:
        return None
    if not seq_len:
        raise CellError("is a number of tokens (allowed: sequences, where seq_len is not known)")
    sequences = sequences_of(tokens, seq_len)
    if not sequences:
        raise CellError(f"is no whole number of sequences of {seq_len} tokens")
    return sequences


def _plain(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _in_range(column: str, value: float, *, whole: bool) -> bool:
    if value == 0:
        return column in _MAY_BE_ZERO
    smallest, largest = _bounds(column, whole=whole)
    return smallest <= value <= largest and (not whole or value == int(value))


def _bounds(column: str, *, whole: bool) -> tuple[float, float]:
    smallest = _SMALLEST.get(column, 1 if whole else _SMALLEST_REAL)
    return smallest, _LARGEST.get(column, _LARGEST_WHOLE if whole else _LARGEST_REAL)


def _allowed(column: str, *, whole: bool) -> str:
    smallest, largest = _bounds(column, whole=whole)
    smallest = 0 if column in _MAY_BE_ZERO else smallest
    unit = f", {_UNITS[column]}" if column in _UNITS else ""
    return f"{'a whole' if whole else 'a'} number from {smallest:g} to {largest:g}{unit}"
