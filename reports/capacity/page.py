"""A run of a capacity study as one HTML file that needs nothing else: plots and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from trainscout.reports.capacity.study_tables import (
    Record,
    break_even_table,
    cautions,
    cells_table,
    effects_table,
    fabrics_table,
    place,
    scaling_table,
    scenarios_table,
    several_fabrics,
    unanswered_table,
)
from trainscout.reports.front_plot import round_step
from trainscout.reports.html_tables import html_cards, html_table, table
from trainscout.reports.inline_page import plain_page
from trainscout.reports.wording import (
    format_gib,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.uncertainty.interval import LEVEL


def study_page(
    record: Record,
    answers: Sequence[str],
    notes: Sequence[str],
    differences: Sequence[str] | None = None,
    launch: Mapping[str, str] | None = None,
) -> str:
    """The page of a run.

    Args:
        record: what ``study_record`` made.
        answers: a sentence for each model, in the record's order.
        notes: sentences about the whole run.
        differences: what changed since the run before, a line each; None when there was none.
        launch: launch scripts by model.
    """
    tokens = format_tokens(record["study"]["training"]["tokens"])
    title = f"Capacity study {record['name']}: {tokens}"
    cells = {cell["key"]: cell for cell in record["cells"]}
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(record["models"]) > 1:
        parts.append(_summary(record, cells))
    if differences is not None:
        parts.append(_differences(differences))
    links: list[tuple[str, str]] = []
    for number, (model, answer) in enumerate(zip(record["models"], answers, strict=True)):
        several = len(record["models"]) > 1
        heading = f"<h2>{escape(model['model'])}</h2>" if several else ""
        parts.append(f'<section id="model{number}">{heading}')
        if several:
            links.append((f"model{number}", model["model"]))
        script = (launch or {}).get(model["model"])
        for at, (name, drawn) in enumerate(_model_parts(record, model, answer, script)):
            parts.append(f'<div id="part{number}-{at}">{drawn}</div>')
            if not several and name:
                links.append((f"part{number}-{at}", name))
        parts.append("</section>")
    started = f"Run of {record['started']}, Trainscout {record['commit'] or 'of unknown commit'}."
    faint = "".join(f'<p class="faint small">{escape(note)}</p>' for note in (*notes, started))
    parts.append(f'<section id="provenance">{faint}</section>')
    return plain_page(title, [*links, ("provenance", "Provenance")], "\n".join(parts))


Parts = Iterable[tuple[str, str]]


def _model_parts(record: Record, model: Record, answer: str, script: str | None) -> Parts:
    """What there is to say of a model: words for the bar, if any, and HTML."""
    own = [cell for cell in record["cells"] if cell["model"] == model["model"]]
    fits = [cell for cell in own if cell["status"] == "fits"]
    chosen = next((cell for cell in fits if cell["key"] == model["answer"]), None)
    if chosen is None or not model["meets_all_targets"]:
        yield "", f"<p>{escape(answer)}</p>"
    if chosen is not None:
        yield "Answer", _chosen_cell(record, model, chosen, script)
    yield "", "".join(f"<p>{escape(words)}</p>" for words in cautions(fits))
    if fits:
        yield "Days and dollars", _plots(record, model, fits)
        yield from _tables(record, model, fits, chosen)
    lost = unanswered_table([c for c in own if c["status"] != "fits"], whole=True)
    yield "No answer" if lost.rows else "", html_table(lost)


def _chosen_cell(record: Record, model: Record, cell: Record, script: str | None) -> str:
    """The answer: where, its figures as cards, its recipe, and how to start it."""
    if model["meets_all_targets"]:
        which = " that meets every target" if model["targets"] else " that fits"
    else:
        which = " of those that fit"
    words = f"The {record['study']['prefer']}{which}: {_plain_place(cell)}"
    share = cell["goodput_share"]
    bar = "" if share < 1 else "if nothing fails"
    if cell["days_interval"] is not None:
        low, high = cell["days_interval"]
        bar = f"{low:,.1f} to {high:,.1f} in {LEVEL:.0%} of measured runs like it, {bar}".rstrip(
            ", "
        )
    goodput = f"goodput {format_percent(share)}" if share < 1 else ""
    price = f"at ${cell['price_usd_per_hour']:g} per GPU-hour"
    cards = (
        ("Days", f"{cell['days']:,.1f}", bar),
        ("Cost", format_usd(cell["usd"]), f"{cell['gpu_hours']:,.0f} GPU-hours {price}"),
        ("Step time", format_seconds(cell["step_time_s"]), f"batch {cell['global_batch_size']:,}"),
        ("MFU", format_percent(cell["mfu"]), goodput),
        (
            "Memory of a GPU",
            format_gib(cell["needed_bytes"]),
            f"of {format_gib(cell['capacity_bytes'])} usable",
        ),
    )
    launched = "" if script is None else _folded("The script that starts it", _pre(script))
    alone = _folded("The command that searches this cell alone", _pre(cell["command"]))
    return (
        f'<p class="lead">{escape(words)}<br><span class="recipe">'
        f"{escape(cell['recipe_words'])}</span></p>{html_cards(cards)}"
        f"{launched}{alone}"
    )


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _plain_place(cell: Record) -> str:
    """``128 x h100, in nodes like those of h100_64``."""
    nodes = f"{cell['num_nodes']:,} node{'s' * (cell['num_nodes'] != 1)}"
    return f"{cell['num_gpus']:,} x {cell['gpu']}, {nodes} like those of {cell['cluster']}"


def _summary(record: Record, cells: Mapping[str, Record]) -> str:
    """The answer of every model in a line."""
    rows = []
    for model in record["models"]:
        cell = cells.get(model["answer"])
        if cell is None:
            rows.append((model["model"], "nothing fits", "", "", "", "", "", ""))
            continue
        met = "all met" if model["meets_all_targets"] else "not all met"
        rows.append(
            (
                model["model"],
                cell["cluster"],
                f"{cell['num_gpus']:,}",
                f"{cell['days']:,.1f}",
                format_usd(cell["usd"]),
                format_percent(cell["mfu"]),
                met if model["targets"] else "",
                cell["recipe_words"],
            )
        )
    columns = "model, cluster, #GPUs, #days, #cost, #MFU, targets, recipe"
    title = f"The {record['study']['prefer']} that meets every target"
    return html_table(table(title, columns, rows))


def _differences(differences: Sequence[str]) -> str:
    if not differences:
        return "<p>Since the last run: nothing changed.</p>"
    listed = "".join(f"<li>{escape(line)}</li>" for line in differences)
    count = f"{len(differences)} change{'s' * (len(differences) > 1)}"
    return f"<details><summary>Since the last run: {count}</summary><ul>{listed}</ul></details>"


def _plots(record: Record, model: Record, cells: Sequence[Record]) -> str:
    # Colours go by the cluster and its fabric, in both plots.
    with_fabric = several_fabrics(cells)
    places = [place(cell, with_fabric) for cell in cells]
    names = list(dict.fromkeys(places))
    by_cluster = [
        Series(
            name,
            [
                Mark(
                    cell["days"],
                    cell["usd"],
                    f"{cell['num_gpus']} GPUs, {cell['days']:,.1f} days, "
                    f"{format_usd(cell['usd'])}: {cell['recipe_words']}",
                    f"{cell['num_gpus']:,}" if cell["pareto"] else "",
                    cell["key"] == model["answer"],
                )
                for cell, where in zip(cells, places, strict=True)
                if where == name
            ],
        )
        for name in names
    ]
    targets = record["study"]["targets"].items()
    days = Axis(
        "days",
        lambda value: f"{value:,g}",
        logarithmic=True,
        limits=[(each["days"], name) for name, each in targets if each["days"] is not None],
    )
    dollars = Axis(
        "US dollars",
        format_usd,
        logarithmic=all(cell["usd"] > 0 for cell in cells),  # one's own GPUs may cost nothing
        limits=[(each["usd"], name) for name, each in targets if each["usd"] is not None],
    )
    note = "The answer is circled; what is Pareto-optimal shows its GPUs."
    plots = [figure("Days and dollars", note, days, dollars, by_cluster, names)]
    if model["scaling"]:
        plots.append(_scaling_plot(model, names, with_fabric))
    return f'<div class="plots">{"".join(plots)}</div>'


def _scaling_plot(model: Record, names: Sequence[str], with_fabric: bool) -> str:
    curves = [
        Series(
            place(curve, with_fabric),
            [
                Mark(
                    size["num_gpus"],
                    100 * size["efficiency"],
                    f"{size['num_gpus']} GPUs: {size['efficiency']:.1%} {size['bend']}",
                )
                for size in curve["sizes"]
            ],
        )
        for curve in model["scaling"]
    ]
    marks = [mark for curve in curves for mark in curve.marks]
    start = 10.0 * math.floor(min(mark.y for mark in marks) / 10 - 0.1)
    gpus = Axis(
        "GPUs", lambda value: f"{value:,.0f}", logarithmic=True, ticks=[mark.x for mark in marks]
    )
    efficiency = Axis("% of the smallest size", lambda value: f"{value:g}", start=max(start, 0.0))
    note = f"Tokens/s per GPU; the axis starts at {efficiency.start:g} %."
    return figure("Scaling efficiency", note, gpus, efficiency, curves, names)


def _tables(
    record: Record, model: Record, cells: Sequence[Record], answer: Record | None
) -> Parts:
    by_key = {cell["key"]: cell for cell in record["cells"]}
    front = [cell for cell in cells if cell["pareto"] or cell["key"] == model["answer"]]
    title = "Pareto-optimal: nothing needs fewer GPUs, days and dollars at once"
    shown = html_table(cells_table(title, model, front, cells, meets=True))
    if len(front) < len(cells):
        every = html_table(cells_table("", model, cells, cells, meets=True))
        shown += _folded(f"All {len(cells)} that fit", every)
    yield "Choices", shown
    for name, each in (
        ("What if", None if answer is None else effects_table(record, model, answer)),
        ("Break-even", break_even_table(model, by_key)),
        ("Prices", scenarios_table(record, model, by_key)),
        ("Fabrics", fabrics_table(model, by_key)),
    ):
        if each is not None and each.rows:
            yield name, html_table(each)
    if model["scaling"]:
        with_fabric = several_fabrics(cells)
        title = "Why scaling bends, by GPU time a token"
        largest = html_table(scaling_table(title, model, with_fabric, largest=True))
        every = html_table(scaling_table("", model, with_fabric, largest=False))
        yield "Scaling", largest + _folded("Why at every size", every)


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


# Colours are the theme's, which the colour-blind distinguish; marks differ in shape as well.
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
        step = round_step((self._high - self._low) / 5)
        first = math.ceil(self._low / step - 1e-9)
        return [step * at for at in range(first, math.floor(self._high / step + 1e-9) + 1)]


_FEWEST_TICKS = 4
