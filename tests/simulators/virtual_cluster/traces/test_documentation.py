"""The page about traces names every kind of event and its fields."""

from __future__ import annotations

import re
from pathlib import Path

from trainscout.simulators.virtual_cluster.traces.codec import FIELDS, VERSION, decode_event

PAGE = Path(__file__).parents[4] / "docs" / "traces.md"


def test_every_kind_and_field_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \|([\w, ]*)\|", PAGE.read_text(), flags=re.MULTILINE)
    described = {kind: tuple(filter(None, fields.strip().split(", "))) for kind, fields in rows}
    assert described == FIELDS


def test_the_lines_shown_are_events() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith('["')]
    assert len(lines) == 5
    for line in lines:
        decode_event(line)
    assert f'"version":{VERSION}' in PAGE.read_text()
