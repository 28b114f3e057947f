"""Record, style and script put into one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from trainscout.reports.search_page.page_data import page_record
from trainscout.reports.search_page.searched import Searched
from trainscout.simulators.predictor.io.output import write_whole

PAGE = "report.html"

_ASSETS = Path(__file__).with_name("assets")
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
    """Write the report of a search into its directory; returns its path.

    Raises:
        OSError: when it cannot be written.
    """
    path = directory / PAGE
    write_whole(path, search_page(searched))
    return path


def search_page(searched: Searched) -> str:
    """The report of a search: one HTML file that asks for no other."""
    return page_html(page_record(searched))


def page_html(record: Mapping[str, Any]) -> str:
    """The page around a record. Nothing but the page's own style and script may run in it."""
    style = "\n".join(_asset(name) for name in _STYLES)
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    pieces = {
        "title": escape(f"{record['title']}: Trainscout"),
        "policy": escape(policy),
        "style": style,
        "script": script,
        "record": _embedded(record),
    }
    # In one pass: what users named is never taken for a place to fill in.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: pieces[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """A source expression that allows exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(record: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")
