"""What a search found as a scatter plot of characters: how fast against how much memory.

Drawn here and not by a plotting library: those tried (plotext 6, uniplot) take a tenth of a
second to import and draw neither the line of capacity nor names beside points, which are what
this plot is looked at for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from trainscout.optimizer.objective import non_dominated
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.trials import latest_trials
from trainscout.simulators.predictor.answer.prediction import Prediction

_ROWS, _MOST_COLUMNS = 14, 100
# Recipes slower than the best by more than this factor would squeeze the others together, and so
# would those far beyond the capacity.
_WORST_SHOWN, _BEYOND_CAPACITY = 1.5, 1.05
_FEWEST = 3


@dataclass(frozen=True)
class Axis:
    """A figure of predictions, in the unit it is shown in."""

    name: str
    unit: str
    read: Callable[[Prediction], float]
    minimise: bool = True


_AXES = {
    "step_time": Axis("step time", "s", lambda p: p.step_time_s),
    "memory": Axis("memory a GPU needs", "GiB", lambda p: p.memory.needed_bytes / 2**30),
    "cost": Axis("cost of the run", "k$", lambda p: p.cost_of_run_usd / 1e3),
    "mfu": Axis("MFU", "%", lambda p: p.mfu * 100, minimise=False),
    "tokens_per_s": Axis("tokens/s", "k", lambda p: p.tokens_per_s / 1e3, minimise=False),
}


@dataclass(frozen=True)
class Spot:
    """One simulated recipe: where it lies, and how it is marked; ``name`` says what it is."""

    across: float
    up: float
    fits: bool
    front: bool
    label: str = ""
    name: str = ""


@dataclass(frozen=True)
class FrontPlot:
    """A renderable; ``limit`` is the capacity, where ``across`` is memory; ``front_words``: what
    the marks of the front mean."""

    across: Axis
    up: Axis
    spots: tuple[Spot, ...]
    limit: float | None
    front_words: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = _ASCII if options.ascii_only else _MARKS
        yield from _drawn(self, marks, min(options.max_width, _MOST_COLUMNS))


@dataclass(frozen=True)
class _Marks:
    fits: str
    front: str
    missed: str
    limit: str
    axis: str
    corner: str


_MARKS = _Marks("•", "●", "×", "┊", "─", "└")
_ASCII = _Marks(".", "o", "x", ":", "-", "+")
_STYLES = {"fits": "", "front": "bold green", "missed": "red", "limit": "red", "label": "bold"}


def _layout(trial: Trial) -> str:
    recipe = trial.recipe
    further = [(name, getattr(recipe, name.lower())) for name in ("CP", "EP")]
    more = "".join(f" × {name} {size}" for name, size in further if size > 1)
    return f"TP {recipe.tp} × PP {recipe.pp}{more}"


def front_plot(
    result: SearchResult,
    shown: Sequence[Trial],
    name: Callable[[Trial], str] = _layout,
    up: Axis | None = None,
) -> FrontPlot | None:
    """The plot of everything simulated: step time against memory, or several objectives' first
    two against each other. None when there is too little to see.

    Args:
        result: of a search.
        shown: the trials of the table above, in its order; those on the front are named so.
        name: what a picture calls a trial.
        up: what stands upwards instead.
    """
    names = result.objectives if len(result.objectives) > 1 else ("step_time", "memory")
    up, across = up or _AXES[names[0]], _AXES[names[1]]
    trials = [t for t in latest_trials(result) if t.prediction is not None]
    if len(trials) < _FEWEST or not any(trial.status == "ok" for trial in trials):
        return None
    ranks = {trial.number: rank for rank, trial in enumerate(shown, start=1)}
    front = _front(result, trials, up, across)
    spots = tuple(
        Spot(
            across.read(prediction),
            up.read(prediction),
            trial.status == "ok",
            trial.number in front,
            f"#{ranks[trial.number]}" if trial.number in front & ranks.keys() else "",
            name(trial),
        )
        for trial in trials
        if (prediction := trial.prediction) is not None
    )
    limit = None
    if names[1] == "memory":
        limit = next(t.prediction for t in trials if t.prediction).memory.capacity_bytes / 2**30
    # Two of three objectives do not show why the front is the front.
    on_front = "nothing is better in both" if len(names) == 2 else f"front of {', '.join(names)}"
    return FrontPlot(across, up, spots, limit, on_front)


def _front(result: SearchResult, trials: Sequence[Trial], up: Axis, across: Axis) -> set[int]:
    if len(result.objectives) > 1:
        return {trial.number for trial in result.pareto}
    fitting = [(t.number, t.prediction) for t in trials if t.status == "ok" and t.prediction]
    sign = 1 if up.minimise else -1
    losses = [(sign * up.read(p), across.read(p)) for _, p in fitting]
    return {fitting[index][0] for index in non_dominated(losses)}


def _drawn(plot: FrontPlot, marks: _Marks, width: int) -> Iterable[Text]:
    left, right = span(plot, lambda spot: spot.across, plot.across)
    low, high = span(plot, lambda spot: spot.up, plot.up)
    inside = [s for s in plot.spots if left <= s.across <= right and low <= s.up <= high]
    row_ticks = ticks(low, high, 4)
    margin = max(len(text) for text in row_ticks.values()) + 2
    columns = max(10, width - margin)
    canvas = _Canvas(columns, _ROWS)

    def column(value: float) -> int:
        return round((value - left) / (right - left) * (columns - 1))

    def row(value: float) -> int:
        return round((high - value) / (high - low) * (_ROWS - 1))

    if plot.limit is not None and left <= plot.limit <= right:
        for each in range(_ROWS):
            canvas.put(column(plot.limit), each, marks.limit, _STYLES["limit"])
    # The front last, so that it lies on top.
    for spot in sorted(inside, key=lambda spot: (spot.front, spot.fits)):
        kind = "front" if spot.front else "fits" if spot.fits else "missed"
        canvas.put(column(spot.across), row(spot.up), getattr(marks, kind), _STYLES[kind])
    for spot in sorted(filter(lambda spot: spot.label, inside), key=lambda s: int(s.label[1:])):
        canvas.write_beside(column(spot.across), row(spot.up), spot.label, _STYLES["label"])
    title = f"{plot.up.name} ({plot.up.unit}) against {plot.across.name} ({plot.across.unit})"
    simulated = f"{len(plot.spots):,} recipes simulated"
    yield Text(f"{title[0].upper()}{title[1:]}, {simulated}", "bold")
    labels = {row(value): text for value, text in row_ticks.items()}
    for number, line in enumerate(canvas.lines()):
        edge = "┤" if marks is _MARKS else "|"
        axis = "│" if marks is _MARKS else "|"
        tick = edge if number in labels else axis
        yield Text(f"{labels.get(number, ''):>{margin - 2}} {tick}").append_text(line)
    yield Text(" " * (margin - 1) + marks.corner + marks.axis * columns)
    yield _scale(plot, left, right, margin, columns, column)
    yield _legend(plot, marks, len(plot.spots) - len(inside), margin)


def _legend(plot: FrontPlot, marks: _Marks, outside: int, margin: int) -> Text:
    missed = sum(not spot.fits for spot in plot.spots)
    legend = Text(" " * margin)
    legend.append(marks.front, _STYLES["front"]).append(f" {plot.front_words}")
    legend.append(f"   {marks.fits} fits")
    if missed:
        legend.append("   ").append(marks.missed, _STYLES["missed"])
        legend.append(f" may not fit ({missed})")
    if outside:
        legend.append(f"   {outside} lie outside")
    return legend


def _scale(
    plot: FrontPlot,
    left: float,
    right: float,
    margin: int,
    columns: int,
    column: Callable[[float], int],
) -> Text:
    line = _Canvas(margin + columns, 1)
    if plot.limit is not None and left <= plot.limit <= right:
        stated = f"{plot.limit:.1f} {plot.across.unit} usable"
        end = min(margin + columns, margin + column(plot.limit) + len(stated) // 2)
        line.write(end - len(stated), 0, stated, _STYLES["limit"])
    for value, text in ticks(left, right, max(2, columns // 14)).items():
        start = min(margin + column(value) - len(text) // 2, margin + columns - len(text))
        line.write(start, 0, text, "")
    (text_line,) = line.lines()
    return text_line


def span(plot: FrontPlot, place: Callable[[Spot], float], axis: Axis) -> tuple[float, float]:
    """From where to where an axis goes: what is near enough to what fits, and a little more."""
    values = [place(spot) for spot in plot.spots]
    fitting = [place(spot) for spot in plot.spots if spot.fits]
    low, high = min(values), max(values)
    if axis is plot.across and plot.limit is not None:
        high = min(max(high, plot.limit), plot.limit * _BEYOND_CAPACITY)
    elif min(fitting) > 0:
        best = min(fitting) if axis.minimise else max(fitting)
        # Not without those that the table lists.
        listed = [place(spot) for spot in plot.spots if spot.label] or [best]
        low = min(max(low, best / _WORST_SHOWN), *listed, best)
        high = max(min(high, best * _WORST_SHOWN), *listed, best)
    room = (high - low or abs(high) or 1.0) * 0.03
    return low - room, high + room


def ticks(low: float, high: float, about: int) -> dict[float, str]:
    """Round values of an axis, with their text."""
    step = round_step((high - low) / about)
    decimals = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step), math.floor(high / step)
    return {number * step: f"{number * step:.{decimals}f}" for number in range(first, last + 1)}


def round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= least)


class _Canvas:
    """Characters with styles, row by row from the top."""

    def __init__(self, columns: int, rows: int) -> None:
        self._cells = [[(" ", "")] * columns for _ in range(rows)]

    def put(self, column: int, row: int, mark: str, style: str) -> None:
        self._cells[row][column] = (mark, style)

    def write(self, column: int, row: int, text: str, style: str) -> bool:
        """Write where nothing else is, a space apart; whether there was room."""
        cells, end = self._cells[row], column + len(text)
        if column < 0 or end > len(cells):
            return False
        if any(mark != " " for mark, _ in cells[max(0, column - 1) : end + 1]):
            return False
        cells[column:end] = [(mark, style) for mark in text]
        return True

    def write_beside(self, column: int, row: int, text: str, style: str) -> None:
        """Write at the right or left of a mark, touching it alone, or not at all."""
        mark = self._cells[row][column]
        self._cells[row][column] = (" ", "")
        if not self.write(column + 1, row, text, style):
            self.write(column - len(text), row, text, style)
        self._cells[row][column] = mark

    def lines(self) -> Iterable[Text]:
        for cells in self._cells:
            line = Text()
            for style, run in itertools.groupby(cells, key=lambda cell: cell[1]):
                line.append("".join(mark for mark, _ in run), style or None)
            line.rstrip()
            yield line
