"""Plots of a capacity study as SVG text: series of marks over two axes, limits as dashed lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

# Colours are those of the theme, which the colour-blind tell apart; marks differ in shape as well.
_MARKS = ("●", "■", "▲", "◆", "▼", "★", "✚", "⬟")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 480, 300, 62, 40, 16, 16


@dataclass(frozen=True)
class Mark:
    """One point: what hovering over it says, letters above it, and whether it stands out."""

    x: float
    y: float
    words: str
    label: str = ""
    chosen: bool = False


@dataclass(frozen=True)
class Series:
    """Marks that a line connects; equal names have equal colours and shapes."""

    name: str
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Axis:
    """An axis: its title with the unit, the words of a tick, where it starts (None: below the
    smallest value), the only ticks it may have (empty: round ones), and values to mark."""

    title: str
    words: Callable[[float], str]
    logarithmic: bool = False
    start: float | None = None
    ticks: Sequence[float] = ()
    limits: Sequence[tuple[float, str]] = ()


def figure(
    title: str, note: str, x: Axis, y: Axis, series: Sequence[Series], names: Sequence[str]
) -> str:
    """A figure with a legend; ``names`` are those of all series of the page, for their colours."""
    xs = [mark.x for each in series for mark in each.marks]
    ys = [mark.y for each in series for mark in each.marks]
    across = _Scale(xs, x, _LEFT, _WIDTH - _RIGHT)
    up = _Scale(ys, y, _HEIGHT - _BOTTOM, _TOP)
    drawn = _grid(across, up)
    for each in series:
        drawn += _series(each, names.index(each.name), across, up)
    legend = "".join(
        f'<li><span class="of{names.index(each.name) % 8}">'
        f"{_MARKS[names.index(each.name) % len(_MARKS)]}</span> {escape(each.name)}</li>"
        for each in series
    )
    spoken = escape(f"{title}: {y.title} over {x.title}", quote=True)
    return (
        f"<figure><figcaption>{escape(title)}<span> {escape(note)}</span></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{spoken}">'
        f'{"".join(drawn)}</svg><ul class="legend">{legend}</ul></figure>'
    )


def _grid(across: _Scale, up: _Scale) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    drawn = []

    def upright(at: float, kind: str) -> None:
        places = f'x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"'
        drawn.append(f'<line class="{kind}" {places}/>')

    def level(at: float, kind: str) -> None:
        places = f'x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"'
        drawn.append(f'<line class="{kind}" {places}/>')

    for tick in across.ticks():
        at = across(tick)
        upright(at, "grid")
        drawn.append(_text(at, bottom + 15, across.axis.words(tick), "middle"))
    for tick in up.ticks():
        at = up(tick)
        level(at, "grid")
        drawn.append(_text(_LEFT - 6, at + 4, up.axis.words(tick), "end"))
    for value, words in across.limits():
        at = across(value)
        upright(at, "limit")
        # On the side that has room for it.
        place, anchor = (at - 4, "end") if at > _WIDTH * 0.7 else (at + 4, "start")
        drawn.append(_text(place, _TOP + 11, words, anchor, "limit-label"))
    for value, words in up.limits():
        at = up(value)
        level(at, "limit")
        drawn.append(_text(_LEFT + 4, at - 4, words, "start", "limit-label"))
    drawn.append(_text((_LEFT + right) / 2, _HEIGHT - 6, across.axis.title, "middle", "faint"))
    drawn.append(_text(_LEFT - 56, 11, up.axis.title, "start", "faint"))
    return drawn


def _series(series: Series, number: int, across: _Scale, up: _Scale) -> list[str]:
    colour, shape = f"of{number % 8}", _MARKS[number % len(_MARKS)]
    marks = sorted(series.marks, key=lambda mark: (mark.x, mark.y))
    line = " ".join(f"{across(mark.x):.1f},{up(mark.y):.1f}" for mark in marks)
    drawn = [f'<polyline class="series {colour}" points="{line}"/>']
    for mark in marks:
        at, height = across(mark.x), up(mark.y)
        if mark.chosen:
            drawn.append(f'<circle class="chosen" cx="{at:.1f}" cy="{height:.1f}" r="10"/>')
        words = escape(f"{series.name} {mark.words}")
        drawn.append(
            f'<text class="mark {colour}" x="{at:.1f}" y="{height + 5:.1f}" '
            f'text-anchor="middle">{shape}<title>{words}</title></text>'
        )
        if mark.label:
            above = 15 if mark.chosen else 11
            drawn.append(_text(at, height - above, mark.label, "middle", "label"))
    return drawn


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


class _Scale:
    """Places values between two ends of an axis, with a little room around them."""

    def __init__(self, values: Sequence[float], axis: Axis, first: float, last: float) -> None:
        low, high = min(values), max(values)
        room = 1.1 if axis.logarithmic else 1.04
        self.axis = axis
        self._low = axis.start if axis.start is not None else low / room
        self._high = high * room if high > 0 else 1.0
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        low, high = self._turned(self._low), self._turned(self._high)
        share = (self._turned(value) - low) / (high - low)
        return self._first + share * (self._last - self._first)

    def _turned(self, value: float) -> float:
        return math.log(value) if self.axis.logarithmic else value

    def limits(self) -> list[tuple[float, str]]:
        return [each for each in self.axis.limits if self._low <= each[0] <= self._high]

    def ticks(self) -> list[float]:
        """Those of the axis, or round values: of a logarithmic one powers of ten with as many
        values between as it takes to have four."""
        if self.axis.ticks:
            return sorted(set(self.axis.ticks))
        if self.axis.logarithmic:
            powers = range(
                math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1
            )
            for bases in ((1,), (1, 2, 5), range(1, 10)):
                values = [base * 10.0**power for power in powers for base in bases]
                ticks = [value for value in values if self._low <= value <= self._high]
                if len(ticks) >= _FEWEST_TICKS:
                    return ticks
        step = _round_step((self._high - self._low) / 5)
        first = math.ceil(self._low / step - 1e-9)
        return [step * at for at in range(first, math.floor(self._high / step + 1e-9) + 1)]


_FEWEST_TICKS = 4


def _round_step(step: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(step))
    return min(base * power for base in (1, 2, 5, 10) if base * power >= step)
