"""A comparison as one HTML file that needs nothing else: bars by class, bars by operation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from trainscout.reports.profile.figures import Line, class_lines, introduction, sentence
from trainscout.reports.profile.report import (
    collective_table,
    operation_name,
    operation_table,
    rank_table,
)
from trainscout.simulators.predictor.io.terminal import as_html
from trainscout.simulators.predictor.kernels.observed import ObservedClass
from trainscout.simulators.virtual_cluster.profiles.comparison import Comparison
from trainscout.simulators.virtual_cluster.profiles.rows import OperationRow

_THEME = Path(__file__).parents[1] / "search_page" / "assets" / "theme.css"
# Nothing but the page's own style; it has no script.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
main { max-width: 1100px; margin: 0 auto; padding: 1.2em 1em 4em; } section { padding-top: 1.4em; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; } svg text.faint { fill: var(--faint); }
.measured { fill: var(--c0); } .predicted { fill: var(--c1); }
.legend span { margin-right: 1.2em; } .legend i { display: inline-block; width: .8em; height: .8em;
  margin-right: .35em; }
.legend .m { background: var(--c0); } .legend .p { background: var(--c1); }
"""
WIDTH, ROW, BAR, LEFT, RIGHT = 1000, 34, 12, 330, 200


def profile_page(
    title: str, found: Sequence[Comparison], observed: dict[str, ObservedClass]
) -> str:
    """The page of a comparison; ``observed`` by class, of all ranks together."""
    first = found[0]
    stated = "".join(f"<p>{escape(line)}</p>" for line in introduction(first))
    legend = (
        '<p class="legend small"><span><i class="m"></i>measured</span>'
        '<span><i class="p"></i>predicted</span></p>'
    )
    sections = [
        f"<h1>{escape(title)}</h1>{stated}<p><b>{escape(sentence(first, observed))}</b></p>",
        f"<section><h2>A step by class</h2>{legend}{bars(class_lines(first, observed))}</section>",
        f"<section><h2>A step by operation</h2>{legend}{bars(_lines(first.operations))}</section>",
    ]
    for name, table in (
        ("Operations, ms", operation_table(first.operations, everything=True)),
        ("Communication", collective_table(first) if first.collectives else None),
        ("Ranks", rank_table(found) if len(found) > 1 else None),
    ):
        if table is not None:
            sections.append(f'<section class="wide"><h2>{name}</h2>{as_html(table)}</section>')
    style = _THEME.read_text(encoding="utf-8") + _STYLE
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def bars(lines: Sequence[Line]) -> str:
    """A pair of bars a line, on one scale; the difference in words behind them."""
    longest = max((max(line.measured_s, line.predicted_s or 0.0) for line in lines), default=0.0)
    scale = (WIDTH - LEFT - RIGHT) / longest if longest else 0.0
    parts = []
    for number, line in enumerate(lines):
        top = number * ROW
        parts.append(
            f'<text x="{LEFT - 8}" y="{top + 19}" text-anchor="end">{escape(line.name)}</text>'
        )
        values = (("measured", line.measured_s, 3), ("predicted", line.predicted_s, 3 + BAR + 1))
        for kind, seconds, down in values:
            if seconds is not None:
                parts.append(
                    f'<rect class="{kind}" x="{LEFT}" y="{top + down}" height="{BAR}" '
                    f'width="{max(seconds * scale, 0.5):.1f}"><title>{kind} {seconds * 1e3:.3f} ms'
                    "</title></rect>"
                )
        words = f"{line.measured_s * 1e3:.3f} ms"
        if line.predicted_s is not None:
            words += f" / {line.predicted_s * 1e3:.3f} ms"
        if line.error is not None:
            words += f" ({line.error:+.0%})"
        parts.append(f'<text class="faint" x="{WIDTH - RIGHT + 8}" y="{top + 19}">{words}</text>')
    height = max(len(lines), 1) * ROW
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="measured beside predicted">{"".join(parts)}</svg>'
    )


def _lines(rows: Sequence[OperationRow]) -> list[Line]:
    return [Line(_name(row), row.measured_s, row.predicted_s) for row in rows]


def _name(row: OperationRow) -> str:
    return ": ".join(operation_name(row)).replace("_", " ")
