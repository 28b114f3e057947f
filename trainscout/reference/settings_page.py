"""The page ``docs/reference.md``: every setting of every command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from trainscout.commands.schemas import COMMANDS, groups_of
from trainscout.reference.groups import Group, all_groups
from trainscout.reference.settings import Setting, as_written, settings
from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.yaml_files import read_yaml

TEXTS: Mapping[str, Any] = read_yaml(Path(__file__).with_name("texts.yaml"))
"""What the pages say around their tables."""


def settings_page() -> str:
    """The whole page, in Markdown. Needs Hydra to be initialised on ``conf``."""
    sections = [TEXTS["settings"], _plain()]
    sections += [_section(group) for group in all_groups()]
    return "\n".join(sections)


def _section(group: Group) -> str:
    title = TEXTS["settings_of"].get(group.prefix)
    heading = f"## `{group.prefix}`" + (f": {title}" if title else "")
    rows = settings(group.prefix, group.value, group.check)
    takers = "" if "." in group.prefix else f"For {_names(group.commands)}.\n\n"
    return f"{heading}\n\n{takers}{_table(rows)}"


def _plain() -> str:
    """Settings outside any group, from the schemas."""
    found: dict[str, list[str]] = {}
    defaults: dict[str, str] = {}
    meanings: dict[str, str] = TEXTS["plain_settings"]
    for command, schema in COMMANDS.items():
        node = ConfigStore.instance().load(f"{schema}.yaml").node
        for name, value in node.items():
            if name not in groups_of(command) and not OmegaConf.is_config(value):
                found.setdefault(str(name), []).append(command)
                defaults[str(name)] = as_written(value)
    rows = [
        (f"`{name}`", _names(commands), f"`{defaults[name]}`", meanings[name])
        for name, commands in sorted(found.items())
    ]
    heads = ("setting", "commands", "default", "meaning")
    shown = table(heads, rows, left=heads)
    return f"## Of a whole command\n\n{shown}\n\n{TEXTS['open']}"


def _table(rows: Sequence[Setting]) -> str:
    heads = ("setting", "values", "default", "meaning")
    cells = ((f"`{row.name}`", row.values, row.default or "required", row.meaning) for row in rows)
    return table(heads, cells, left=heads) + "\n"


def _names(commands: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in commands)
