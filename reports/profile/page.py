"""A comparison as one HTML file that needs nothing else: bars by class, bars by operation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trainscout.reports.html_tables import from_terminal, html_table
from trainscout.reports.inline_page import plain_page
from trainscout.reports.profile.figures import Line, class_lines, introduction, sentence
from trainscout.reports.profile.report import (
    collective_table,
    operation_name,
    operation_table,
    rank_table,
)
from trainscout.simulators.predictor.kernels.observed import ObservedClass
from trainscout.simulators.virtual_cluster.profiles.comparison import Comparison

WIDTH, ROW, BAR, LEFT, RIGHT = 1000, 34, 12, 330, 200


def profile_page(
    title: str, found: Sequence[Comparison], observed: dict[str, ObservedClass]
) -> str:
    """The page of a comparison; ``observed`` by class, of all ranks together."""
    first = found[0]
    stated = "".join(f"<p>{escape(line)}</p>" for line in introduction(first))
    legend = (
        '<ul class="legend"><li><span class="of0">■</span> measured</li>'
        '<li><span class="of1">■</span> predicted</li></ul>'
    )
    operations = [
        Line(": ".join(operation_name(row)).replace("_", " "), row.measured_s, row.predicted_s)
        for row in first.operations
    ]
    sections = {
        "A step by class": legend + bars(class_lines(first, observed)),
        "A step by operation": legend + bars(operations),
    }
    for name, table in (
        ("Operations, ms", operation_table(first.operations, everything=True)),
        ("Communication", collective_table(first) if first.collectives else None),
        ("Ranks", rank_table(found) if len(found) > 1 else None),
    ):
        if table is not None:
            sections[name] = html_table(from_terminal(table))
    body = f"<h1>{escape(title)}</h1>{stated}<p><b>{escape(sentence(first, observed))}</b></p>"
    for number, (name, content) in enumerate(sections.items()):
        body += f'<section id="s{number}"><h2>{escape(name)}</h2>{content}</section>'
    return plain_page(title, [(f"s{number}", name) for number, name in enumerate(sections)], body)


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
        values = (("measured", line.measured_s), ("predicted", line.predicted_s))
        for place, (kind, seconds) in enumerate(values):
            if seconds is not None:
                parts.append(
                    f'<rect class="bar of{place}" x="{LEFT}" '
                    f'y="{top + 3 + place * (BAR + 1)}" height="{BAR}" '
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
