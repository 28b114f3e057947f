"""The validation as one page to browse: no server, no network, light and dark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from trainscout.simulators.laboratory.published.plots import (
    error_plot,
    memory_plot,
    step_time_plot,
)

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
