"""The page ``docs/choices.md``: every choice of every group of ``conf/``."""

from __future__ import annotations

from typing import Any

from trainscout.commands.listing import described, kinds
from trainscout.conf.catalogue import Catalogue, load_catalogue
from trainscout.reference.markdown import TEXTS, markdown_table
from trainscout.reference.settings import as_written
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml

# What a file says beside values: its name, and sources of figures, one click away.
_NO_VALUES = ("name", "defaults", "source", "sources")
# Files of many fields, which what they are sums up.
_LONG = ("model", "gpu", "architecture", "framework", "space")


def choices_page() -> str:
    """The whole page, in Markdown."""
    titles: dict[str, str] = TEXTS["groups"]
    groups = sorted(kinds().values(), key=lambda each: ([*titles, each].index(each), each))
    catalogue = load_catalogue()
    tables = [_group(group, titles.get(group, group.capitalize()), catalogue) for group in groups]
    return "\n".join([TEXTS["choices"], *tables])


def _group(group: str, title: str, catalogue: Catalogue) -> str:
    """What each file is, as ``trainscout list`` has it, and what it sets."""
    rows = []
    for name, about in described(group, catalogue).items():
        sets = "<br>".join(f"`{key}: {value}`" for key, value in _flat(group, name).items())
        rows.append((f"[`{name}`](../conf/{group}/{name}.yaml)", about, sets))
    shown = 3 if any(sets for *_, sets in rows) else 2
    heads = (group, "what it is", "what it sets")[:shown]
    table = markdown_table(heads, [row[:shown] for row in rows])
    return f"## {title}\n\n`{group}=`\n\n{table}"


def _flat(group: str, choice: str) -> dict[str, str]:
    """Values of a file by name, with what is inside a group named after it."""
    flat: dict[str, str] = {}
    if group in _LONG:
        return flat
    content: dict[str, Any] = read_yaml(DECLARATIONS / group / f"{choice}.yaml") or {}
    for key, value in content.items():
        if key in _NO_VALUES:
            continue
        inside = value.items() if isinstance(value, dict) else ()
        flat |= {f"{key}.{name}": as_written(part) for name, part in inside}
        if not inside:
            flat[key] = as_written(value)
    return flat
