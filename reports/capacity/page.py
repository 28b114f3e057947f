"""A run of a capacity study as one HTML file that needs nothing else: plots and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from reports.wording import part_words, percent_words, tokens_words, usd_words

Record = Mapping[str, Any]

# Okabe and Ito's colours, which the colour-blind tell apart; marks differ in shape as well.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKS = ("●", "■", "▲", "◆", "▼", "★")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 340, 70, 40, 12, 12

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #777; --line: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #eee; --faint: #aaa; --line: #444; --paper: #161616; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1150px; margin: 2em auto; padding: 0 1em; }
.wide { overflow-x: auto; }
.plots { display: flex; flex-wrap: wrap; gap: 1em; }
figure { margin: 0; flex: 1 1 420px; } svg { width: 100%; height: auto; }
figcaption { font-weight: 600; }
svg text { fill: var(--ink); font-size: 12px; } svg .grid { stroke: var(--line); }
svg .series { fill: none; stroke-width: 1.5; }
table { border-collapse: collapse; margin: 0.5em 0 1.5em; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.7em; text-align: left; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
td:last-child { white-space: normal; }
td.n, th.n { text-align: right; } tr.answer { font-weight: 700; } .faint { color: var(--faint); }
"""


def study_page(record: Record, answers: Sequence[str], notes: Sequence[str]) -> str:
    """The page of a run.

    Args:
        record: what ``study_record`` made.
        answers: a sentence for each model, in the record's order.
        notes: sentences about the whole run.
    """
    tokens = tokens_words(record["study"]["training"]["tokens"])
    title = f"Capacity study {record['name']}: {tokens}"
    parts = [f"<h1>{escape(title)}</h1>"]
    cells = {cell["key"]: cell for cell in record["cells"]}
    for model, answer in zip(record["models"], answers, strict=True):
        own = [cell for cell in cells.values() if cell["model"] == model["model"]]
        parts.append(f"<h2>{escape(model['model'])}</h2><p>{escape(answer)}</p>")
        parts += _model_parts(model, [cell for cell in own if cell["status"] == "fits"])
        parts += _without_answer([cell for cell in own if cell["status"] != "fits"])
    parts += [f'<p class="faint">{escape(note)}</p>' for note in notes]
    started = f"Run of {record['started']}, Trainscout {record['commit'] or 'of unknown commit'}."
    parts.append(f'<p class="faint">{escape(started)}</p>')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _model_parts(model: Record, cells: Sequence[Record]) -> list[str]:
    if not cells:
        return []
    curves = [
        _Series(
            curve["cluster"],
            [(size["num_gpus"], 100 * size["efficiency"], _bend(size)) for size in curve["sizes"]],
        )
        for curve in model["scaling"]
    ]
    # Colours go by the cluster, in both plots.
    names = list(dict.fromkeys(cell["cluster"] for cell in cells))
    by_cluster = [
        _Series(
            name,
            [
                (cell["days"], cell["usd"], f"{cell['num_gpus']} GPUs: {cell['recipe_words']}")
                for cell in cells
                if cell["cluster"] == name
            ],
        )
        for name in names
    ]
    plots = [_figure("Days and dollars", "days", "US dollars", by_cluster, names, log_y=True)]
    if curves:
        title = "Scaling efficiency"
        plots.append(_figure(title, "GPUs", "% of the smallest size", curves, names))
    return [f'<div class="plots">{"".join(plots)}</div>', *_tables(model, cells)]


def _tables(model: Record, cells: Sequence[Record]) -> Iterable[str]:
    rows = [
        (
            "answer" if cell["key"] == model["answer"] else "",
            [
                "*" if cell["pareto"] else "",
                cell["cluster"],
                f"{cell['nics_per_node']} x {cell['nic_gbps']:g} Gb/s",
                f"{cell['num_gpus']:,}",
                f"{cell['days']:,.1f}",
                usd_words(cell["usd"]),
                percent_words(cell["mfu"]),
                percent_words(cell["goodput_share"]),
                ", ".join(cell["targets_met"]),
                cell["recipe_words"],
            ],
        )
        for cell in cells
    ]
    heads = ["", "cluster", "fabric", "GPUs", "days", "cost", "MFU", "goodput", "meets", "recipe"]
    yield _table("GPUs, days, dollars (* nothing is better in all three)", heads, rows, (3, 8))
    bends = [
        (
            "",
            [
                curve["cluster"],
                f"{size['num_gpus']:,}",
                percent_words(size["efficiency"]),
                _bend(size),
            ],
        )
        for curve in model["scaling"]
        for size in curve["sizes"]
    ]
    yield _table(
        "Why scaling bends", ["cluster", "GPUs", "efficiency", "what grew"], bends, (1, 3)
    )
    effects = [("", _effect_cells(effect)) for effect in model["effects"]]
    yield _table("What if", ["change", "GPUs", "days", "cost", ""], effects, (1, 4))
    evens = [
        (
            "",
            [
                even["cell"],
                f"${even['price_usd_per_hour']:.2f}",
                f"${even['break_even_usd_per_hour']:.2f}",
            ],
        )
        for even in model["break_evens"]
    ]
    heads = ["cell", "price of a GPU-hour", "break-even price"]
    yield _table("Break-even with the answer", heads, evens, (1, 3))


def _effect_cells(effect: Record) -> list[str]:
    name, gpus = effect["name"], f"{effect['num_gpus']:,}"
    if effect["days"] is None:
        return [name, gpus, "-", "-", effect["reason"] or ""]
    recipe = {None: "", True: "another recipe is best", False: "the same recipe"}
    days, usd = f"{effect['days']:,.1f}", usd_words(effect["usd"])
    return [name, gpus, days, usd, recipe[effect["recipe_changed"]]]


def _bend(size: Record) -> str:
    if size["part"] is None:
        return ""
    words = f"{part_words(size['part'])} ({size['share_of_growth']:.0%})"
    return f"{words}; batch limit" if size["batch_limited"] else words


def _without_answer(cells: Sequence[Record]) -> list[str]:
    rows = [
        ("", [cell["cluster"], f"{cell['num_gpus']:,}", cell["reason"] or ""]) for cell in cells
    ]
    return [_table("No answer", ["cluster", "GPUs", "why"], rows, (1, 2))] if rows else []


def _table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str]]],
    numbers: tuple[int, int],
) -> str:
    """``rows`` are a class and cells; columns from ``numbers[0]`` up to ``numbers[1]`` are
    figures."""
    if not rows:
        return ""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = [' class="n"' if numbers[0] <= at < numbers[1] else "" for at in range(len(cells))]
        return "".join(
            f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, cells, strict=True)
        )

    body = "".join(f'<tr class="{name}">{line("td", cells)}</tr>' for name, cells in rows)
    return (
        f'<h3>{escape(title)}</h3><div class="wide"><table><thead><tr>{line("th", heads)}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


@dataclass(frozen=True)
class _Series:
    """Points of one cluster: x, y and what hovering over one says."""

    name: str
    points: Sequence[tuple[float, float, str]]


def _figure(
    title: str,
    x_name: str,
    y_name: str,
    series: Sequence[_Series],
    names: Sequence[str],
    *,
    log_y: bool = False,
) -> str:
    xs = [x for each in series for x, _, _ in each.points]
    ys = [y for each in series for _, y, _ in each.points]
    x_at = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, logarithmic=True)
    y_low = min(ys) if log_y else min(0.0, *ys)
    y_at = _Scale(y_low, max(ys), _HEIGHT - _BOTTOM, _TOP, logarithmic=log_y)
    drawn = []
    for tick in sorted(set(xs)) if x_name == "GPUs" else x_at.ticks():
        x = x_at(tick)
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}"')
        drawn.append(f' y2="{_HEIGHT - _BOTTOM}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{tick:,g}</text>')
    for tick in y_at.ticks():
        y = y_at(tick)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}"')
        drawn.append(f' y1="{y:.1f}" y2="{y:.1f}"/>')
        label = usd_words(tick) if log_y else f"{tick:,g}"
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for each in series:
        number = names.index(each.name)
        colour = _COLOURS[number % len(_COLOURS)]
        mark = _MARKS[number % len(_MARKS)]
        places = [(x_at(x), y_at(y), words) for x, y, words in sorted(each.points)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        drawn.append(f'<polyline class="series" stroke="{colour}" points="{line}"/>')
        for x, y, words in places:
            drawn.append(
                f'<text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" style="fill:{colour};'
                f'font-size:15px">{mark}<title>{escape(f"{each.name} {words}")}</title></text>'
            )
    axis = f"{x_name} (across), {y_name} (up)"
    legend = " ".join(
        f'<span style="color:{_COLOURS[at % len(_COLOURS)]}">{_MARKS[at % len(_MARKS)]}</span>'
        f" {escape(name)}"
        for at, name in enumerate(names)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}: {axis}">'
        f'{"".join(drawn)}<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{axis}'
        f"</text></svg><div>{legend}</div></figure>"
    )


class _Scale:
    """Places values between two ends of an axis, with a little room around them."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, logarithmic: bool
    ) -> None:
        self._log = logarithmic
        room = 1.08 if logarithmic else 1.05
        self._low, self._high = (low / room, high * room) if logarithmic else (low, high * room)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        low, high = self._turned(self._low), self._turned(self._high)
        return self._start + (self._turned(value) - low) / (high - low) * (self._end - self._start)

    def _turned(self, value: float) -> float:
        return math.log(value) if self._log else value

    def ticks(self) -> list[float]:
        """Round values within: 1, 2 and 5 times powers of ten (all digits where that gives too
        few), or five even steps."""
        if not self._log:
            step = _round_step((self._high - self._low) / 5)
            count = int(self._high / step)
            return [step * at for at in range(count + 1) if step * at >= self._low]
        first = math.floor(math.log10(self._low))
        last = math.ceil(math.log10(self._high))
        ticks: list[float] = []
        for bases in ((1, 2, 5), range(1, 10)):
            values = [base * 10.0**power for power in range(first, last + 1) for base in bases]
            ticks = [value for value in values if self._low <= value <= self._high]
            if len(ticks) > 2:
                break
        return ticks


def _round_step(step: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(step))
    return min(base * power for base in (1, 2, 5, 10) if base * power >= step)
