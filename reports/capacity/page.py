"""A run of a capacity study as one HTML file that needs nothing else: plots and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from trainscout.reports.capacity.plot import Axis, Mark, Series, figure
from trainscout.reports.capacity.tables import (
    Record,
    StudyTable,
    break_even_table,
    cautions,
    cells_table,
    effects_table,
    fabrics_table,
    place,
    scaling_table,
    scenarios_table,
    several_fabrics,
    table,
    unanswered_table,
)
from trainscout.reports.inline_page import asset, content_policy
from trainscout.reports.wording import (
    format_gib,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.uncertainty import LEVEL

_OWN = Path(__file__).parent


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
    for number, (model, answer) in enumerate(zip(record["models"], answers, strict=True)):
        parts.append(f'<section id="model{number}"><h2>{escape(model["model"])}</h2>')
        script = (launch or {}).get(model["model"])
        parts += _model_parts(record, model, answer, script)
        parts.append("</section>")
    started = f"Run of {record['started']}, Trainscout {record['commit'] or 'of unknown commit'}."
    faint = "".join(f'<p class="faint small">{escape(note)}</p>' for note in (*notes, started))
    parts.append(f'<section id="provenance">{faint}</section>')
    style = "\n".join(
        [asset("theme.css"), asset("page.css"), (_OWN / "page.css").read_text(encoding="utf-8")]
    )
    script = asset("theme.js") + (_OWN / "page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{escape(content_policy(style, script))}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>"
        f"{_bar_of_sections(record)}<main>\n"
        + "\n".join(parts)
        + f"\n</main><script>{script}</script></body></html>\n"
    )


def _bar_of_sections(record: Record) -> str:
    models = [(f"model{at}", model["model"]) for at, model in enumerate(record["models"])]
    links = "".join(
        f'<a href="#{target}">{escape(words)}</a>'
        for target, words in (*models, ("provenance", "Provenance"))
    )
    return (
        '<header class="bar"><span class="brand">Trainscout</span>'
        f'<nav aria-label="Sections">{links}</nav>'
        '<button type="button" id="theme"></button></header>'
    )


def _model_parts(record: Record, model: Record, answer: str, script: str | None) -> Iterable[str]:
    own = [cell for cell in record["cells"] if cell["model"] == model["model"]]
    fits = [cell for cell in own if cell["status"] == "fits"]
    chosen = next((cell for cell in fits if cell["key"] == model["answer"]), None)
    if chosen is None or not model["meets_all_targets"]:
        yield f"<p>{escape(answer)}</p>"
    if chosen is not None:
        yield _chosen_cell(record, model, chosen, script)
    yield from (f"<p>{escape(words)}</p>" for words in cautions(fits))
    if fits:
        yield _plots(record, model, fits)
        yield from _tables(record, model, fits, chosen)
    yield _table(unanswered_table([c for c in own if c["status"] != "fits"], whole=True))


def _chosen_cell(record: Record, model: Record, cell: Record, script: str | None) -> str:
    """The answer: where, its figures as cards, its recipe, and how to start it."""
    if model["meets_all_targets"]:
        which = " that meets every target" if model["targets"] else " that fits"
    else:
        which = " of those that fit"
    words = f"The {record['study']['prefer']}{which}: {_plain_place(cell)}"
    bar = ""
    if cell["days_interval"] is not None:
        low, high = cell["days_interval"]
        bar = f"{low:,.1f} to {high:,.1f} in {LEVEL:.0%} of measured runs like it"
    price = f"at ${cell['price_usd_per_hour']:g} per GPU-hour"
    cards = (
        ("Days", f"{cell['days']:,.1f}", bar),
        ("Cost", format_usd(cell["usd"]), f"{cell['gpu_hours']:,.0f} GPU-hours {price}"),
        ("Step time", format_seconds(cell["step_time_s"]), f"batch {cell['global_batch_size']:,}"),
        ("MFU", format_percent(cell["mfu"]), f"goodput {format_percent(cell['goodput_share'])}"),
        (
            "Memory of a GPU",
            format_gib(cell["needed_bytes"]),
            f"of {format_gib(cell['capacity_bytes'])} usable",
        ),
    )
    drawn = "".join(
        f'<div class="card"><h3>{escape(name)}</h3><div class="big">{escape(figure)}</div>'
        f"<p>{escape(more)}</p></div>"
        for name, figure, more in cards
    )
    launched = "" if script is None else _folded("The script that starts it", _pre(script))
    alone = _folded("The command that searches this cell alone", _pre(cell["command"]))
    return (
        f'<p class="lead">{escape(words)}<br><span class="recipe">'
        f'{escape(cell["recipe_words"])}</span></p><div class="cards">{drawn}</div>'
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
    return _table(table(f"The {record['study']['prefer']} that meets every target", columns, rows))


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
    note = "The answer is circled; Pareto-optimal cells show their GPUs."
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
        "GPUs",
        lambda value: f"{value:,.0f}",
        logarithmic=True,
        ticks=[mark.x for mark in marks],
    )
    efficiency = Axis("% of the smallest size", lambda value: f"{value:g}", start=max(start, 0.0))
    note = f"Tokens/s per GPU; the axis starts at {efficiency.start:g} %."
    return figure("Scaling efficiency", note, gpus, efficiency, curves, names)


def _tables(
    record: Record, model: Record, cells: Sequence[Record], answer: Record | None
) -> Iterable[str]:
    by_key = {cell["key"]: cell for cell in record["cells"]}
    front = [cell for cell in cells if cell["pareto"] or cell["key"] == model["answer"]]
    title = "Pareto-optimal cells: nothing needs fewer GPUs, days and dollars at once"
    yield _table(cells_table(title, model, front, cells, meets=True))
    if len(front) < len(cells):
        every = _table(cells_table("", model, cells, cells, meets=True))
        yield _folded(f"All {len(cells)} cells that fit", every)
    if answer is not None:
        yield _table(effects_table(record, model, answer))
    yield _table(break_even_table(model, by_key))
    yield _table(scenarios_table(record, model, by_key))
    yield _table(fabrics_table(model, by_key))
    if model["scaling"]:
        with_fabric = several_fabrics(cells)
        title = "Why scaling bends, by GPU time a token"
        yield _table(scaling_table(title, model, with_fabric, largest=True))
        every = _table(scaling_table("", model, with_fabric, largest=False))
        yield _folded("Why at every size", every)


def _bar(move: float, widest: float) -> str:
    """A bar to the left for less, to the right for more."""
    length = 78 * abs(move) / widest if widest else 0.0
    x = 80 - length if move < 0 else 80.0
    kind = "less" if move < 0 else "more"
    return (
        '<svg viewBox="0 0 160 14" aria-hidden="true">'
        f'<rect class="{kind}" x="{x:.1f}" y="2" width="{length:.1f}" height="10"/>'
        '<line class="axis" x1="80" x2="80" y1="0" y2="14"/></svg>'
    )


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _table(shown: StudyTable) -> str:
    """With a bar before the last column where costs move."""
    if not shown.rows:
        return ""
    moves = [row.move for row in shown.rows if row.move is not None]
    widest = max(map(abs, moves), default=0.0)

    def line(tag: str, cells: Sequence[str], bar: str) -> str:
        drawn = [
            f"<{tag}{_class(_kind(shown, column))}>{escape(text)}</{tag}>"
            for column, text in zip(shown.columns, cells, strict=True)
        ]
        if moves:
            drawn.insert(-1, f'<{tag} class="move">{bar}</{tag}>')
        return "".join(drawn)

    body = "".join(
        f"<tr{_class('answer' if row.chosen else '')}>"
        f"{line('td', row.cells, '' if row.move is None else _bar(row.move, widest))}</tr>"
        for row in shown.rows
    )
    heading = f"<h3>{escape(shown.title)}</h3>" if shown.title else ""
    return (
        f'{heading}<div class="wide"><table{_class("effects" if moves else "")}>'
        f"<thead><tr>{line('th', shown.columns, '')}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _kind(shown: StudyTable, column: str) -> str:
    return "n" if column in shown.figures else "recipe" if column == "recipe" else ""
