"""HTML files that need nothing else: inline style and script, and a policy of only those."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

_ASSETS = Path(__file__).with_name("search_page") / "assets"


def asset(name: str) -> str:
    """The text of a style or script that pages share."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def plain_page(title: str, sections: Sequence[tuple[str, str]], body: str) -> str:
    """A whole page without figures that answer: a bar with links to ``sections`` (id, words), and
    ``body`` as HTML."""
    style = "\n".join(map(asset, ("theme.css", "page.css", "plain.css")))
    script = asset("theme.js") + asset("plain.js")
    links = "".join(f'<a href="#{target}">{escape(words)}</a>' for target, words in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{escape(content_policy(style, script))}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>"
        '<header class="bar"><span class="brand">Trainscout</span>'
        f'<nav aria-label="Sections">{links}</nav>'
        '<button type="button" id="theme"></button></header>'
        f"<main>\n{body}\n</main><script>{script}</script></body></html>\n"
    )


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which nothing but these two inline texts is in force."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """A source expression that allows exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
