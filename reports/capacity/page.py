"""A run of a capacity study as one HTML file that needs nothing else: plots and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from trainscout.reports.capacity.plot import Axis, Mark, Series, figure
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
from trainscout.reports.html_tables import html_cards, html_table, table
from trainscout.reports.inline_page import plain_page
from trainscout.reports.wording import (
    format_gib,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.uncertainty import LEVEL


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
    models = [(f"model{at}", model["model"]) for at, model in enumerate(record["models"])]
    return plain_page(title, [*models, ("provenance", "Provenance")], "\n".join(parts))


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
    yield html_table(unanswered_table([c for c in own if c["status"] != "fits"], whole=True))


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
    yield html_table(cells_table(title, model, front, cells, meets=True))
    if len(front) < len(cells):
        every = html_table(cells_table("", model, cells, cells, meets=True))
        yield _folded(f"All {len(cells)} cells that fit", every)
    if answer is not None:
        yield html_table(effects_table(record, model, answer))
    yield html_table(break_even_table(model, by_key))
    yield html_table(scenarios_table(record, model, by_key))
    yield html_table(fabrics_table(model, by_key))
    if model["scaling"]:
        with_fabric = several_fabrics(cells)
        title = "Why scaling bends, by GPU time a token"
        yield html_table(scaling_table(title, model, with_fabric, largest=True))
        every = html_table(scaling_table("", model, with_fabric, largest=False))
        yield _folded("Why at every size", every)


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
