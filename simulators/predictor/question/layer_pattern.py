"""Layers as a pattern: ``12*(3*linear/moe, attention/moe)`` lists a model's layers.

Words ``mixer/mlp`` stand in order, repeated by a number and an asterisk, in parentheses where
several are. A mixer is one of the model's ``kinds``, ``attention`` (the model's own) or ``none``;
an MLP is ``dense``, a number (a dense one of that width), ``moe`` or ``none``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from .errors import InputError, require_choice
from .layers import DENSE, MLPS, MOST_LAYERS, Layer

GRAMMAR = "words mixer/mlp such as 2*(3*local/dense) and commas between them"
_MOST_NESTED = 8
_WORD = r"[A-Za-z_][\w.-]*/(?:[A-Za-z]+|[1-9]\d{0,7})"
_WORDS = rf"{_WORD}(?:\s*,\s*{_WORD})*"
_REPEATED = re.compile(
    r"(?:^|(?<=[(,]))\s*(?:(?P<times>\d{1,6})\s*\*\s*)?"
    rf"(?:(?P<word>{_WORD})|\(\s*(?P<group>{_WORDS})\s*\))\s*(?=[,)]|$)"
)


@functools.lru_cache(maxsize=256)
def parse_layers(text: str) -> tuple[Layer, ...]:
    """The layers of a pattern in order.

    Raises:
        InputError: for text that is no pattern, an MLP of no known kind, or too many layers.
    """
    written = text
    for _ in range(_MOST_NESTED + 1):
        if "*" in written or "(" in written:
            written = _repeated(written, text)
    if not re.fullmatch(rf"\s*{_WORDS}\s*", written):
        raise _no_pattern(text)
    return tuple(map(_layer, written.split(",")))


def format_layers(layers: Iterable[Layer]) -> str:
    """A pattern of these layers, repetitions folded: what ``parse_layers`` reads."""
    words = [f"{layer.mixer}/{layer.ffn_hidden_size or layer.mlp}" for layer in layers]
    written = []
    while words:
        period, times = max(
            ((period, _repetitions(words, period)) for period in range(1, len(words) // 2 + 2)),
            key=lambda each: (each[0] * each[1] if each[1] > 1 else each[0] == 1, -each[0]),
        )
        inner, words = words[:period], words[period * times :]
        one = inner[0] if period == 1 else f"({format_layers(map(_layer, inner))})"
        written.append(one if times == 1 else f"{times}*{one}")
    return ", ".join(written)


def _repetitions(words: list[str], period: int) -> int:
    """How often the first ``period`` words stand one after another."""
    times = 1
    while words[times * period : (times + 1) * period] == words[:period]:
        times += 1
    return times


def _layer(word: str) -> Layer:
    mixer, mlp = word.strip().split("/")
    if mlp.isdecimal():
        return Layer(mixer, DENSE, int(mlp))
    require_choice("model.layers", mlp, MLPS)
    return Layer(mixer, mlp)


def _repeated(written: str, text: str) -> str:
    """What is ``written`` of a pattern, with words, and groups of plain words, as often as they
    are repeated."""
    number = 0

    def repeat(found: re.Match[str]) -> str:
        nonlocal number
        words, times = (found["word"] or found["group"]).split(","), int(found["times"] or 1)
        number += times * len(words)
        if number > MOST_LAYERS:
            problem = f"has more than {MOST_LAYERS:,} layers"
            raise InputError("model.layers", text[:60], problem, f"1..{MOST_LAYERS}")
        return ",".join(words * times)

    return _REPEATED.sub(repeat, written)


def _no_pattern(text: str) -> InputError:
    # A count is what other tools call the layers.
    count = f"model.num_layers={text.strip()}" if text.strip().isdecimal() else None
    return InputError("model.layers", text[:60], "is no pattern of layers", GRAMMAR, count)
