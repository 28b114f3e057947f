"""Predicted against measured, drawn as SVG text. Matplotlib is only needed here.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; every group also
has its own marker.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# One more than colours, so that no two of many groups look alike.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_BAND = 0.2
Row = Mapping[str, Any]


def step_time_plot(rows: Sequence[Row]) -> str:
    """Predicted against measured seconds of a step, by GPU generation, logarithmic."""
    shown = [row for row in rows if row["counted"] and row["error"] is not None]
    return _scatter(
        shown,
        lambda row: (row["measured"], row["predicted"]),
        "measured step time, s",
        "predicted step time, s",
    )


def memory_plot(rows: Sequence[Row]) -> str:
    """Predicted against measured peak memory in GiB, by GPU generation."""
    shown = [row for row in rows if row["counted"] and row["memory_error"] is not None]
    gib = 2**30
    return _scatter(
        shown,
        lambda row: (row["measured_memory_bytes"] / gib, row["predicted_memory_bytes"] / gib),
        "measured peak memory, GiB",
        "predicted peak memory, GiB",
    )


def error_plot(rows: Sequence[Row]) -> str:
    """Signed errors of the step time per source: every row, and the middle eighty percent."""
    import numpy as np

    groups: dict[str, list[float]] = {}
    for row in rows:
        if row["counted"] and row["error"] is not None:
            groups.setdefault(row["group"], []).append(100 * row["error"])
    names = sorted(groups, key=lambda name: float(np.median(np.abs(groups[name]))), reverse=True)
    figure, axes = _figure(8.0, 1.0 + 0.21 * len(names))
    for height, name in enumerate(names):
        errors = groups[name]
        axes.plot(errors, [height] * len(errors), "|", color="#56B4E9", markersize=9, alpha=0.6)
        low, middle, high = np.percentile(errors, [10, 50, 90])
        axes.plot([low, high], [height, height], color="#0072B2", linewidth=2)
        axes.plot([middle], [height], "o", color="#D55E00", markersize=5)
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set_yticks(range(len(names)), [f"{name} ({len(groups[name])})" for name in names])
    axes.set_ylim(-0.8, max(len(names), 1) - 0.2)
    # Whole quarters around all errors: a slip by a factor shows, and does not squeeze the others.
    everything = [error for errors in groups.values() for error in errors] or [0.0]
    axes.set_xlim(
        max(-100, 25 * np.floor(min(*everything, -25) / 25)),
        min(100, 25 * np.ceil(max(*everything, 25) / 25)),
    )
    axes.set_xlabel(
        "error of the predicted step time, % (dot: median, bar: 10th to 90th percentile)"
    )
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    return _svg(figure)


def gpu_generation(gpu: str) -> str:
    """The family of a GPU label (``H100-80GB-SXM`` is an ``H100``)."""
    return gpu.split("-")[0].split(" ")[0]


def _scatter(
    rows: Sequence[Row], point: Callable[[Row], tuple[float, float]], x_label: str, y_label: str
) -> str:
    figure, axes = _figure(7.0, 6.0)
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        groups.setdefault(gpu_generation(row["gpu"]), []).append(point(row))
    ordered = sorted(groups, key=lambda name: -len(groups[name]))
    for index, name in enumerate(ordered):
        xs, ys = zip(*groups[name], strict=True)
        axes.plot(
            xs,
            ys,
            _MARKERS[index % len(_MARKERS)],
            color=_COLOURS[index % len(_COLOURS)],
            label=f"{name} ({len(xs)})",
            markersize=4,
            alpha=0.6,
            markeredgewidth=0,
        )
    values = [value for points in groups.values() for pair in points for value in pair]
    if values:
        ends = [min(values) / 1.3, max(values) * 1.3]
        axes.plot(ends, ends, color="#000000", linewidth=0.8)
        axes.fill_between(
            ends,
            [end * (1 - _BAND) for end in ends],
            [end * (1 + _BAND) for end in ends],
            color="#999999",
            alpha=0.15,
            linewidth=0,
            label=f"within {_BAND:.0%}",
        )
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color="#dddddd", linewidth=0.6)
    return _svg(figure)


def _figure(width_inch: float, height_inch: float) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        problem = "needs Matplotlib, which is not installed"
        raise InputError("plots", "svg", problem, "pip install trainscout[plots]") from error
    figure = NewFigure(figsize=(width_inch, height_inch), facecolor="white", layout="tight")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    """The drawing as SVG, byte for byte the same for the same data."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "trainscout", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


_TEMPLATE = Path(__file__).with_name("page.html")


def validation_html(report: Mapping[str, Any]) -> str:
    """The page of a report as ``validation_report`` returns it.

    Raises:
        InputError: when Matplotlib, which draws the plots, is not installed.
    """
    memory = ""
    if report["memory"]["overall"]["n"]:
        drawn = _inline(memory_plot(report["rows"]))
        memory = f"<figure><figcaption>Peak memory</figcaption>{drawn}</figure>"
    page = Template(_TEMPLATE.read_text(encoding="utf-8"))
    return page.substitute(
        step_plot=_inline(step_time_plot(report["rows"])),
        error_plot=_inline(error_plot(report["rows"])),
        memory_figure=memory,
        data=_script_safe(report),
    )


def _inline(svg: str) -> str:
    """The drawing without its XML prologue, which HTML does not allow inside a page."""
    return svg[svg.index("<svg") :]


def _script_safe(report: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(report, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
