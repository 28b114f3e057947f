"""A run of a capacity study as one HTML file that needs nothing else: plots and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from trainscout.reports.capacity.plot import Axis, Mark, Series, figure
from trainscout.reports.capacity.what_if import format_what_if
from trainscout.reports.inline_page import asset, content_policy
from trainscout.reports.wording import (
    format_gib,
    format_part,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.uncertainty import LEVEL

Record = Mapping[str, Any]

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
    if fits:
        yield _plots(record, model, fits)
        yield from _tables(record, model, fits)
    yield from _without_answer([cell for cell in own if cell["status"] != "fits"])


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
    columns = [
        _Column("model"),
        _Column("cluster"),
        _Column("GPUs", "n"),
        _Column("days", "n"),
        _Column("cost", "n"),
        _Column("MFU", "n"),
        _Column("targets"),
        _Column("recipe", "recipe"),
    ]
    rows = []
    for model in record["models"]:
        cell = cells.get(model["answer"])
        if cell is None:
            rows.append(_Row((model["model"], "nothing fits", "", "", "", "", "", "")))
            continue
        met = "all met" if model["meets_all_targets"] else "not all met"
        figures = (f"{cell['num_gpus']:,}", f"{cell['days']:,.1f}", format_usd(cell["usd"]))
        rest = (
            format_percent(cell["mfu"]),
            met if model["targets"] else "",
            cell["recipe_words"],
        )
        rows.append(_Row((model["model"], cell["cluster"], *figures, *rest)))
    return _table(f"The {record['study']['prefer']} that meets every target", columns, rows)


def _differences(differences: Sequence[str]) -> str:
    if not differences:
        return "<p>Since the last run: nothing changed.</p>"
    listed = "".join(f"<li>{escape(line)}</li>" for line in differences)
    count = f"{len(differences)} change{'s' * (len(differences) > 1)}"
    return f"<details><summary>Since the last run: {count}</summary><ul>{listed}</ul></details>"


def _plots(record: Record, model: Record, cells: Sequence[Record]) -> str:
    # Colours go by the cluster and its fabric, in both plots.
    with_fabric = _several_fabrics(cells)
    places = [_place(cell["cluster"], _fabric(cell), with_fabric) for cell in cells]
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
                for cell, place in zip(cells, places, strict=True)
                if place == name
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
            _place(curve["cluster"], curve["fabric"], with_fabric),
            [
                Mark(
                    size["num_gpus"],
                    100 * size["efficiency"],
                    f"{size['num_gpus']} GPUs: {size['efficiency']:.1%} {_bend(size)}",
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


@dataclass(frozen=True)
class _Column:
    """``kind``: its class, ``n`` for figures; ``drawn``: its cells are HTML of the page's own."""

    title: str
    kind: str = ""
    drawn: bool = False


@dataclass(frozen=True)
class _Row:
    """Cells, and the class of the row."""

    cells: Sequence[str]
    kind: str = ""


def _tables(record: Record, model: Record, cells: Sequence[Record]) -> Iterable[str]:
    with_fabric = _several_fabrics(cells)
    columns = [_Column("cluster"), *([_Column("fabric")] if with_fabric else [])]
    columns += [_Column(name, "n") for name in ("GPUs", "days", "cost", "MFU", "goodput")]
    columns += [_Column("meets"), _Column("recipe", "recipe")]

    def rows(shown: Iterable[Record]) -> list[_Row]:
        return [
            _Row(
                (
                    cell["cluster"],
                    *([_fabric(cell)] if with_fabric else []),
                    f"{cell['num_gpus']:,}",
                    f"{cell['days']:,.1f}",
                    format_usd(cell["usd"]),
                    format_percent(cell["mfu"]),
                    format_percent(cell["goodput_share"]),
                    ", ".join(cell["targets_met"]) or "-",
                    cell["recipe_words"],
                ),
                "answer" if cell["key"] == model["answer"] else "",
            )
            for cell in shown
        ]

    front = [cell for cell in cells if cell["pareto"] or cell["key"] == model["answer"]]
    title = "Pareto-optimal cells: nothing needs fewer GPUs, days and dollars at once"
    yield _table(title, columns, rows(front))
    if len(front) < len(cells):
        yield _folded(f"All {len(cells)} cells that fit", _table("", columns, rows(cells)))
    answer = next((cell for cell in cells if cell["key"] == model["answer"]), None)
    yield _effects(record, model, answer)
    yield _prices(model)
    yield _fabric_costs(model, cells)
    if model["scaling"]:
        yield _bends("Why scaling bends", model, with_fabric, largest=True)
        yield _folded("Why at every size", _bends("", model, with_fabric, largest=False))


def _several_fabrics(cells: Sequence[Record]) -> bool:
    """Whether a cluster was asked with more than one fabric."""
    pairs = {(cell["cluster"], _fabric(cell)) for cell in cells}
    return len(pairs) > len({cluster for cluster, _ in pairs})


def _place(cluster: str, fabric: str, with_fabric: bool) -> str:
    return f"{cluster}, {fabric}" if with_fabric else cluster


def _fabric(cell: Record) -> str:
    words = f"{cell['nics_per_node']} x {cell['nic_gbps']:g} Gb/s"
    over = cell["oversubscription"]
    words += f", {over:g}:1" if over != 1 else ""
    switches = cell.get("topology")
    return words if switches is None else f"{words}, {switches}"


def _effects(record: Record, model: Record, answer: Record | None) -> str:
    if answer is None:
        return ""

    def moved(usd: float) -> float:
        return usd / answer["usd"] - 1 if answer["usd"] else 0.0

    effects = [effect["usd"] for effect in model["effects"] if effect["usd"] is not None]
    widest = max((abs(moved(usd)) for usd in effects), default=0.0)
    rows = []
    for effect in model["effects"]:
        name = format_what_if(effect["name"], record["study"]["what_ifs"])
        gpus = f"{effect['num_gpus']:,}"
        if effect["days"] is None:
            rows.append(_Row((name, gpus, "-", "-", "-", "", effect["reason"] or "")))
            continue
        recipe = {None: "", True: "another recipe is best", False: "the same recipe"}
        move = moved(effect["usd"])
        figures = (f"{effect['days']:,.1f}", format_usd(effect["usd"]), f"{move:+.1%}")
        words = recipe[effect["recipe_changed"]]
        rows.append(_Row((name, gpus, *figures, _bar(move, widest), words)))
    columns = [_Column("change"), *(_Column(name, "n") for name in ("GPUs", "days", "cost"))]
    columns += [_Column("cost moves", "n"), _Column("", "move", drawn=True), _Column("")]
    return _table("What if", columns, rows, "effects")


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


def _prices(model: Record) -> str:
    columns = [_Column("cell"), _Column("price of a GPU-hour", "n"), _Column("break-even", "n")]
    evens = [
        _Row(
            (
                even["cell"],
                f"${even['price_usd_per_hour']:.2f}",
                f"${even['break_even_usd_per_hour']:.2f}",
            )
        )
        for even in model["break_evens"]
    ]
    words = "Break-even: the price at which a cell of another cluster costs what the answer does"
    table = _table(words, columns, evens)
    columns = [_Column("prices"), _Column("answer"), _Column("price of a GPU-hour", "n")]
    columns += [_Column("days", "n"), _Column("cost", "n"), _Column("targets")]
    scenarios = [
        _Row(
            (
                scenario["name"],
                scenario["answer"],
                f"${scenario['price_usd_per_hour']:.2f}",
                f"{scenario['days']:,.1f}",
                format_usd(scenario["usd"]),
                "all met" if scenario["meets_all_targets"] else "not all met",
            )
        )
        for scenario in model["price_scenarios"]
        if scenario["answer"] is not None
    ]
    return table + _table("At other prices", columns, scenarios)


def _fabric_costs(model: Record, cells: Sequence[Record]) -> str:
    by_key = {cell["key"]: cell for cell in cells}
    columns = [_Column("cluster"), _Column("GPUs", "n"), _Column("switches", "n")]
    columns += [_Column("cables", "n"), _Column("bought for", "n"), _Column("step", "n")]
    columns += [_Column("slower", "n"), _Column("saved per %", "n"), _Column("recipe")]
    rows = []
    for cost in model["fabrics"]:
        cell, per = by_key[cost["cell"]], cost["usd_per_percent"]
        figures = (
            f"{cell['num_gpus']:,}",
            *(f"{cost[part]:,}" for part in ("switches", "cables")),
            format_usd(cost["usd"]),
            format_seconds(cell["step_time_s"]),
            format_percent(cost["slower"]),
            "-" if per is None else format_usd(per),
        )
        words = "another is best" if cost["recipe_changed"] else ""
        rows.append(_Row((_place(cell["cluster"], _fabric(cell), True), *figures, words)))
    return _table("Fabrics at assumed prices of their parts, fastest first", columns, rows)


def _bends(title: str, model: Record, with_fabric: bool, *, largest: bool) -> str:
    columns = [_Column("cluster"), _Column("GPUs", "n"), _Column("efficiency", "n")]
    columns.append(_Column("what grew, in GPU time a token"))
    rows = [
        _Row(
            (
                _place(curve["cluster"], curve["fabric"], with_fabric),
                f"{size['num_gpus']:,}",
                format_percent(size["efficiency"]),
                _bend(size),
            )
        )
        for curve in model["scaling"]
        for size in curve["sizes"][-1 if largest else 0 :]
    ]
    return _table(title, columns, rows)


def _bend(size: Record) -> str:
    if size["part"] is None:
        return ""
    words = f"{format_part(size['part'])} ({size['share_of_growth']:.0%} of it)"
    return f"{words}; batch limit" if size["batch_limited"] else words


def _without_answer(cells: Sequence[Record]) -> list[str]:
    columns = [_Column("cluster"), _Column("GPUs", "n"), _Column("why")]
    rows = [
        _Row((cell["cluster"], f"{cell['num_gpus']:,}", cell["reason"] or "")) for cell in cells
    ]
    return [_table("No answer", columns, rows)] if rows else []


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _table(title: str, columns: Sequence[_Column], rows: Sequence[_Row], kind: str = "") -> str:
    if not rows:
        return ""

    def line(tag: str, row: _Row) -> str:
        return "".join(
            f"<{tag}{_class(column.kind)}>{text if column.drawn else escape(text)}</{tag}>"
            for column, text in zip(columns, row.cells, strict=True)
        )

    heads = line("th", _Row([column.title for column in columns]))
    body = "".join(f"<tr{_class(row.kind)}>{line('td', row)}</tr>" for row in rows)
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return (
        f'{heading}<div class="wide"><table{_class(kind)}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
