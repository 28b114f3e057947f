"""The tables of a capacity study, from its record: one of each for terminal and page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainscout.reports.html_tables import ReportTable, Row, table
from trainscout.reports.wording import format_percent, format_seconds, format_usd

Record = Mapping[str, Any]


def several_fabrics(cells: Iterable[Record]) -> bool:
    """Whether a cluster was asked with more than one fabric."""
    pairs = {(cell["cluster"], cell["fabric"]) for cell in cells}
    return len(pairs) > len({cluster for cluster, _ in pairs})


def cautions(cells: Iterable[Record]) -> list[str]:
    """Of every cluster whose cells claim more than anybody published, what the one that claims
    most has beside it."""
    bold: dict[str, Record] = {}
    for cell in cells:
        known = bold.get(cell["cluster"])
        if cell["measure_first"] and (known is None or cell["mfu"] > known["mfu"]):
            bold[cell["cluster"]] = cell
    return [
        f"Measure first on {name}: {cell['measure_first']} with {cell['num_gpus']:,} GPUs."
        for name, cell in bold.items()
    ]


def place(cell: Record, with_fabric: bool) -> str:
    """The cluster of a cell or a curve; where a cluster has several, with its fabric."""
    return f"{cell['cluster']}, {cell['fabric']}" if with_fabric else cell["cluster"]


def cells_table(
    title: str, model: Record, cells: Sequence[Record], among: Sequence[Record], *, meets: bool
) -> ReportTable:
    """Cells that fit; * marks the front of GPUs, days and dollars. ``among``: all that fit;
    ``meets``: with the targets that each meets. Goodput is shown where failures count."""
    with_fabric = several_fabrics(among)
    failing = any(cell["goodput_share"] < 1 for cell in among)
    rows = [
        Row(
            (
                "*" if cell["pareto"] else "",
                place(cell, with_fabric),
                f"{cell['num_gpus']:,}",
                f"{cell['days']:,.1f}",
                format_usd(cell["usd"]),
                format_percent(cell["mfu"]),
                *([format_percent(cell["goodput_share"])] if failing else []),
                *([", ".join(cell["targets_met"]) or "-"] if meets else []),
                cell["recipe_words"],
            ),
            chosen=cell["key"] == model["answer"],
        )
        for cell in cells
    ]
    columns = ", cluster, #GPUs, #days, #cost, #MFU"
    columns += f"{', #goodput' if failing else ''}{', meets' if meets else ''}, recipe"
    return table(title, columns, rows)


def scaling_table(title: str, model: Record, with_fabric: bool, *, largest: bool) -> ReportTable:
    """Every size of every curve, or the largest alone."""
    rows = [
        (
            place(curve, with_fabric),
            f"{size['num_gpus']:,}",
            f"{size['tokens_per_s_per_gpu']:,.0f}",
            format_percent(size["efficiency"]),
            size["bend"],
        )
        for curve in model["scaling"]
        for size in curve["sizes"][-1 if largest else 0 :]
    ]
    return table(title, "cluster, #GPUs, #tokens/s/GPU, #efficiency, what grew", rows)


def effects_table(record: Record, model: Record, answer: Record) -> ReportTable:
    """What the answer's cell takes and costs if its circumstances change."""
    rows = []
    for effect in model["effects"]:
        name = format_what_if(effect["name"], record["study"]["what_ifs"])
        gpus = f"{effect['num_gpus']:,}"
        if effect["days"] is None:
            rows.append(Row((name, gpus, "-", "-", "-", effect["reason"] or "")))
            continue
        move = effect["usd"] / answer["usd"] - 1 if answer["usd"] else None
        figures = (f"{effect['days']:,.1f}", format_usd(effect["usd"]))
        recipe = {None: "", True: "another is best", False: "the same"}[effect["recipe_changed"]]
        moved = "-" if move is None else f"{round(move, 3) + 0.0:+.1%}"  # never -0.0%
        rows.append(Row((name, gpus, *figures, moved, recipe), move=move or 0.0))
    title = f"What if, for {answer['num_gpus']:,} GPUs of {answer['cluster']}"
    return table(title, "change, #GPUs, #days, #cost, #cost moves, recipe", rows)


def break_even_table(model: Record, cells: Mapping[str, Record]) -> ReportTable:
    """Prices at which cells of other clusters cost what the answer does."""
    rows = [
        (
            cells[even["cell"]]["cluster"],
            f"{cells[even['cell']]['num_gpus']:,}",
            f"{cells[even['cell']]['gpu_hours']:,.0f}",
            f"${even['price_usd_per_hour']:.2f}",
            f"${even['break_even_usd_per_hour']:.2f}",
        )
        for even in model["break_evens"]
    ]
    title = "Break-even"
    if model["answer"] is not None:
        answer = cells[model["answer"]]
        where = f"{answer['num_gpus']:,} GPUs of {answer['cluster']}"
        price = answer["price_usd_per_hour"]
        title += f": where others cost as much as {where} at ${price:.2f} an hour"
    return table(title, "cluster, #GPUs, #GPU-hours, #price now, #break-even price", rows)


def scenarios_table(record: Record, model: Record, cells: Mapping[str, Record]) -> ReportTable:
    """The answer at other prices."""
    rows = [
        (
            scenario["name"],
            cells[scenario["answer"]]["cluster"],
            f"{cells[scenario['answer']]['num_gpus']:,}",
            f"${scenario['price_usd_per_hour']:.2f}",
            f"{scenario['days']:,.1f}",
            format_usd(scenario["usd"]),
            "all met" if scenario["meets_all_targets"] else "not all met",
        )
        for scenario in model["price_scenarios"]
        if scenario["answer"] is not None
    ]
    title = f"At other prices, the {record['study']['prefer']}"
    return table(title, "prices, cluster, #GPUs, #price, #days, #cost, targets", rows)


def fabrics_table(model: Record, cells: Mapping[str, Record]) -> ReportTable:
    """What every fabric costs, and what one that is cheaper than the fastest saves."""
    rows = []
    for cost in model["fabrics"]:
        cell, per = cells[cost["cell"]], cost["usd_per_percent"]
        rows.append(
            (
                place(cell, with_fabric=True),
                f"{cell['num_gpus']:,}",
                f"{cost['switches']:,}",
                f"{cost['cables']:,}",
                format_usd(cost["usd"]),
                format_seconds(cell["step_time_s"]),
                format_percent(cost["slower"]),
                "-" if per is None else format_usd(per),
                "another is best" if cost["recipe_changed"] else "",
            )
        )
    columns = (
        "cluster, #GPUs, #switches, #cables, #bought for, #step, #slower, #saved per %, recipe"
    )
    return table("Fabrics at assumed prices of their parts, fastest first", columns, rows)


def unanswered_table(cells: Sequence[Record], *, whole: bool) -> ReportTable:
    """Cells without an answer, and why: all of it, or what was closest."""
    with_fabric = several_fabrics(cells)
    rows = []
    for cell in cells:
        # The second line is what was closest.
        lines = (cell["reason"] or cell["status"]).splitlines()
        reason = "\n".join(lines if whole else lines[:2][-1:])
        rows.append((cell["model"], place(cell, with_fabric), f"{cell['num_gpus']:,}", reason))
    return table("No answer", "model, cluster, #GPUs, why", rows)


def format_what_if(name: str, what_ifs: Mapping[str, Mapping[str, Any]]) -> str:
    """``3 x the GPUs``: what a change does.

    Args:
        name: of an effect; those the study does not declare say what they do.
        what_ifs: the fields of each declared ``WhatIf``.
    """
    change = what_ifs.get(name)
    if change is None:
        return name
    parts = [f"on {change['cluster']}"] if change["cluster"] else []
    if change["size"] != 1:
        parts.append(f"{change['size']:g} x the GPUs")
    if change["network"] != 1:
        parts.append(f"{change['network']:g} x the network")
    return ", ".join(parts) or "no change"
