"""What a search found as a picture, for notebooks and slides: how fast against how much memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from trainscout.reports.front_plot import Axis, FrontPlot, Spot, span, ticks
from trainscout.simulators.predictor.io.output import write_output

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 40, 52
_LETTER_WIDTH, _LABEL_HEIGHT, _GAP = 7, 12, 10
# Readable on a white slide and in a dark notebook; distinguished by form too.
_TEXT, _FRONT, _FITS, _MISSED = "#7a7f87", "#1f9d55", "#4c78a8", "#d1495b"


@dataclass(frozen=True)
class Picture:
    """A scatter plot as SVG; a notebook shows it by itself."""

    plot: FrontPlot
    title: str

    def to_svg(self) -> str:
        """The picture as an SVG document."""
        return "\n".join(_drawn(self.plot, self.title))

    def save(self, path: str | Path) -> None:
        """Write the SVG document."""
        write_output("path", Path(path), self.to_svg() + "\n")

    def _repr_html_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<picture of {len(self.plot.spots):,} recipes: {self.title}>"


def _drawn(plot: FrontPlot, title: str) -> Iterator[str]:
    left, right = span(plot, lambda spot: spot.across, plot.across)
    low, high = span(plot, lambda spot: spot.up, plot.up)

    def x(value: float) -> float:
        return _LEFT + (value - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    inside = [s for s in plot.spots if left <= s.across <= right and low <= s.up <= high]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="13" '
        f'fill="{_TEXT}" role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f'<text x="{_LEFT}" y="20" font-size="15" font-weight="bold">{escape(title)}</text>'
    yield from _axes(plot, (left, right), (low, high), x, y)
    if plot.limit is not None and left <= plot.limit <= right:
        at, label = x(plot.limit), f"{plot.limit:.1f} {plot.across.unit} usable"
        yield (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" '
            f'stroke="{_MISSED}" stroke-dasharray="4 3"/>'
        )
        yield _text(at - 6, _TOP + 12, label, f'text-anchor="end" fill="{_MISSED}"')
    for spot in sorted(inside, key=lambda spot: (spot.front, spot.fits)):
        yield _mark(spot, x(spot.across), y(spot.up), plot)
    named = sorted((s for s in inside if s.front), key=lambda s: int(s.label[1:] or len(inside)))
    # Of several by one name the first.
    by_name = {s.name or s.label: s for s in reversed(named)}
    right_end = x(plot.limit) if plot.limit is not None and plot.limit <= right else _WIDTH
    yield from _labels(
        (
            (x(s.across), y(s.up), _label(s, plot.up.unit))
            for s in named
            if by_name.get(s.name or s.label) is s and s.fits
        ),
        right_end,
    )
    outside = len(plot.spots) - len(inside)
    notes = f"● {plot.front_words}   ● fits   × may not fit"
    notes += f"   ({outside:,} lie outside)" if outside else ""
    yield _legend(notes)
    yield "</svg>"


def _axes(
    plot: FrontPlot,
    across: tuple[float, float],
    up: tuple[float, float],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> Iterator[str]:
    floor = _HEIGHT - _BOTTOM
    for value, label in ticks(*across, 7).items():
        yield _text(x(value), floor + 16, label, 'text-anchor="middle"')
    for value, label in ticks(*up, 5).items():
        at = y(value)
        yield (
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="{_TEXT}" stroke-opacity="0.2"/>'
        )
        yield _text(_LEFT - 8, at + 4, label, 'text-anchor="end"')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield _text(middle, floor + 32, _named(plot.across), 'text-anchor="middle"')
    yield _text(_LEFT, _TOP - 6, _named(plot.up), "")


def _named(axis: Axis) -> str:
    return f"{axis.name[0].upper()}{axis.name[1:]}, {axis.unit}"


def _mark(spot: Spot, x: float, y: float, plot: FrontPlot) -> str:
    figures = f"{spot.up:.4g} {plot.up.unit}, {spot.across:.4g} {plot.across.unit}"
    title = f"<title>{escape(f'{spot.label} {figures}'.strip())}</title>"
    if not spot.fits:
        path = f"M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6"
        return f'<path d="{path}" stroke="{_MISSED}" stroke-opacity="0.6">{title}</path>'
    radius, colour = (6, _FRONT) if spot.front else (3, _FITS)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{title}</circle>'


def _label(spot: Spot, unit: str) -> str:
    first = "#1 " if spot.label == "#1" else ""
    figure = f"{spot.up:,.0f}" if spot.up >= 1e4 else f"{spot.up:.4g}"
    return f"{first}{spot.name}: {figure} {unit}"


def _labels(spots: Iterable[tuple[float, float, str]], right_end: float) -> Iterator[str]:
    """Names below their marks, the first given first, left of ``right_end`` where there is room;
    those that would lie on another are left out."""
    placed: list[tuple[float, float, float]] = []
    for x, y, label in spots:
        width = _LETTER_WIDTH * len(label)
        end = right_end if x < right_end else _WIDTH
        left = x - width if x + width > end else x
        if all(
            left > a + wide or a > left + width or abs(y - b) > _LABEL_HEIGHT
            for a, b, wide in placed
        ):
            placed.append((left, y, width))
            side = f'text-anchor="{"end" if left < x else "start"}" fill="{_FRONT}"'
            # Below, where rows of recipes of one layout leave room, or above the axis.
            below = y + _GAP + _LABEL_HEIGHT / 2
            yield _text(x, below if below < _HEIGHT - _BOTTOM else y - _GAP, label, side)


def _legend(notes: str) -> str:
    colours = iter((_FRONT, _FITS, _MISSED))
    parts = [
        f'<tspan fill="{next(colours)}">{part}</tspan>' if part in "●×" else escape(part)
        for part in notes.replace("●", "\0●\0").replace("×", "\0×\0").split("\0")
        if part
    ]
    return f'<text x="{_LEFT}" y="{_HEIGHT - 6}" xml:space="preserve">{"".join(parts)}</text>'


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
