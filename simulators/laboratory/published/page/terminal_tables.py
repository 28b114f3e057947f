"""What a validation looks like on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.simulators.laboratory.published.layouts import together
from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.memory.bands import BANDS, NO, TIGHT

from .markdown import SUMMARY_HEADER, beside_others, percent, summary_cells

_NAMES = {
    "by_source": "by source",
    "by_gpu": "by GPU",
    "by_family": "by model family",
    "by_scale": "by number of GPUs",
    "by_precision": "by precision",
}
_REASONS_SHOWN = 12
_SWEEPS_SHOWN = 12


def validation_tables(report: Mapping[str, Any], results: Sequence[Result]) -> RenderableType:
    """Step time by every grouping, memory by source, and why rows were left out."""
    parts: list[RenderableType] = []
    for key, name in _NAMES.items():
        flat = report["baseline"]["by_source"] if key == "by_source" else {}
        parts.append(_table(f"Step time {name}", report[key], report["overall"], flat))
    if report["memory"]["overall"]["n"]:
        memory = report["memory"]
        parts.append(_table("Peak memory by source", memory["by_source"], memory["overall"]))
    parts.append(_bands(report["memory"]["bands"]))
    if report["layouts"]:
        parts.append(_layouts(report["layouts"]))
    if report["baseline"]["sets"]:
        parts.append(_sets(report["baseline"]["sets"]))
    if report["coverage"]["n"]:
        parts.append(_coverage(report["coverage"]))
    for source, summary in report["extrapolated"].items():
        words = f"{summary['n']} runs of {source} are extrapolated, not measured, and not counted:"
        words += " their times are affine to parts per million."
        parts.append(Text(words))
    if names := report["unread_columns"]:
        parts.append(Text(f"Columns that were not read: {', '.join(names)}."))
    parts.append(_reasons(results))
    return Group(*parts)


def _bands(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """The band that runs which ran are predicted to be in, of sources with any out of ``fits``."""
    table = _empty_table("Memory of runs that ran, by band", *BANDS)
    for name, bands in counts.items():
        if name == "all" or bands[TIGHT] or bands[NO]:
            style = "bold" if name == "all" else ""
            table.add_row(name, *(str(bands[band]) for band in BANDS), style=style)
    return table


def _empty_table(title: str, *columns: str) -> Table:
    figures = (f"#{name}" for name in columns)
    return plain_table("", *figures, title=title, padding=(0, 2, 0, 0))


def _table(
    title: str,
    groups: Mapping[str, Mapping[str, Any]],
    overall: Mapping[str, Any],
    flat: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Table:
    """``flat`` adds the mean error of the flat baseline."""
    table = _empty_table(title, *SUMMARY_HEADER, *(("flat mean",) if flat else ()))
    for name, summary in groups.items():
        known = flat.get(name, {}).get("mean_abs_error")
        table.add_row(name, *summary_cells(summary), *((percent(known),) if flat else ()))
    table.add_section()
    table.add_row("all", *summary_cells(overall), style="bold")
    return table


def _layouts(layouts: Mapping[str, Mapping[str, Any]]) -> Table:
    """Every sweep, but together those of a source that has very many."""
    table = _empty_table("Layout sweeps", "layouts", "Kendall tau", "selection regret")
    for source, names in groupby(layouts, lambda name: name.split(":")[0]):
        sweeps = {name: layouts[name] for name in names}
        if len(sweeps) > _SWEEPS_SHOWN:
            sweeps = {f"{source}: {len(sweeps)} sweeps": together([*sweeps.values()])}
        for name, found in sweeps.items():
            regret = percent(found["selection_regret"])
            table.add_row(name, str(found["n"]), f"{found['kendall_tau']:.2f}", regret)
    return table


def _sets(sets: Mapping[str, Mapping[str, Any]]) -> Table:
    peers, rows = beside_others(sets)
    table = _empty_table("Mean absolute error beside others", "rows", "ours", "flat", *peers)
    for cells in rows:
        table.add_row(*cells)
    return table


def _coverage(coverage: Mapping[str, Any]) -> Text:
    count, unseen = coverage["n"], coverage["n_unseen"]
    words = f"{coverage['inside']:.1%} of {count} runs are inside their {coverage['level']:.0%}"
    words += " error bar"
    if not unseen:
        words += ", which was made from these runs"
    elif unseen < count:
        words += f", and {coverage['inside_unseen']:.1%} of the {unseen} it was not made from"
    return Text(f"{words}.")


def _reasons(results: Sequence[Result]) -> Text:
    counts = Counter(result.reason for result in results if result.prediction is None)
    if not counts:
        return Text("Every row was predicted.")
    lines = [f"{sum(counts.values())} rows not predicted:"]
    for reason, number in counts.most_common(_REASONS_SHOWN):
        lines.append(f"  {number:4d}  {reason}")
    if len(counts) > _REASONS_SHOWN:
        lines.append(f"  and {len(counts) - _REASONS_SHOWN} other reasons (see the JSON file)")
    return Text("\n".join(lines))
