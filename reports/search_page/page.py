"""Record, style and script put into one HTML file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from trainscout.reports.inline_page import asset, content_policy
from trainscout.reports.search_page.page_data import page_record
from trainscout.reports.search_page.searched import Searched
from trainscout.simulators.predictor.io.output import write_whole

PAGE = "report.html"

_STYLES = ("theme.css", "page.css")
# In the order in which each uses what is before it.
_SCRIPTS = (
    "format.js",
    "dom.js",
    "svg.js",
    "theme.js",
    "selection.js",
    "answer.js",
    "breakdown.js",
    "scatter.js",
    "parallel.js",
    "layout_map.js",
    "memory.js",
    "pipeline.js",
    "checked.js",
    "sensitivity.js",
    "ranking.js",
    "trial_table.js",
    "launch.js",
    "particulars.js",
    "main.js",
)


def write_search_page(directory: Path, searched: Searched) -> Path:
    """Write the report of a search into its directory; returns its path."""
    path = directory / PAGE
    write_whole(path, search_page(searched))
    return path


def search_page(searched: Searched) -> str:
    """The report of a search: one HTML file that asks for no other."""
    return page_html(page_record(searched))


def page_html(record: Mapping[str, Any]) -> str:
    """The page around a record. Nothing but the page's own style and script may run in it."""
    style = "\n".join(map(asset, _STYLES))
    script = "\n".join(map(asset, _SCRIPTS))
    pieces = {
        "title": escape(f"{record['title']}: Trainscout"),
        "policy": escape(content_policy(style, script)),
        "style": style,
        "script": script,
        "record": _embedded(record),
    }
    # In one pass: what users named is never taken for a place to fill in.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: pieces[place[1]], asset("page.html"))


def _embedded(record: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")
