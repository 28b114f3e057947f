"""The page ``docs/reference.md``: every setting of every command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from trainscout.commands.schemas import COMMANDS, PLAIN_SETTINGS, groups_of
from trainscout.reference.groups import Group, all_groups
from trainscout.reference.markdown import markdown_table
from trainscout.reference.settings import Setting, as_written, settings

_TITLES = {
    "model": "the model's shape",
    "model.moe": "its experts",
    "model.mla": "its latent attention",
    "model.kinds.<name>.attention": "a kind of layer that attends",
    "model.kinds.<name>.attention.index": "to keys that an indexer chooses",
    "model.kinds.<name>.mamba2": "a kind of layer with a state-space mixer",
    "model.kinds.<name>.mamba1": "a kind of layer with a selective state-space mixer",
    "model.kinds.<name>.short_conv": "a kind of layer with a gated short convolution",
    "model.kinds.<name>.delta": "a kind of layer with a gated delta net",
    "model.diffusion": "latents and a text in place of words",
    "model.towers.<number>": "an encoder in front of it",
    "gpu": "one accelerator",
    "cluster": "nodes and what joins them",
    "training": "how it is trained",
    "training.lora": "its adapters",
    "training.dpo": "preference optimisation",
    "training.distillation": "learning from a teacher",
    "framework": "the software that runs it",
    "recipe": "how the job is laid out",
    "search": "how to search, and when to stop",
    "objective": "what is best",
    "simulator": "who predicts",
    "network": "what slows communication down",
    "network.packet": "packets and queues",
    "network.packet.dcqcn": "congestion control by marks",
    "network.packet.timely": "congestion control by the gradient of delays",
    "network.packet.swift": "congestion control by a target of delay",
    "network.packet.hpcc": "congestion control by stamps of switches",
    "network.hybrid": "when packets may be skipped",
    "topology": "the switches",
    "fabric_prices": "what parts of a network cost",
    "sweep.fabric_prices": "what parts of a network cost",
    "executor": "who simulates",
    "tracking": "where searches are kept",
    "verify": "looking at the best again",
    "launch": "files that start the job",
    "heat_map": "a picture of the links",
    "timeline": "a step operation by operation",
    "goodput": "failures and checkpoints",
    "sweep": "a capacity study",
    "sweep.targets.<name>": "what a run has to keep to",
    "sweep.what_ifs.<name>": "a change to the answer",
}

_INTRODUCTION = """\
# Settings

Every setting that a command takes, generated from the code by
`python -m trainscout.reference`. Write
it on the command line as `name=value`, or in a YAML file of
[your own](howto/own-declarations.md). What a group can be set to, such as `model=llama3_70b`, is
on the page [What ships](choices.md). `trainscout optimize --help` lists the same settings with the
values they have.

A value that is not allowed ends the command with exit code 2 before anything is written, and one
line says what would be right.
"""


_OPEN = """\
`a.` and `b.` of `explain` take the fields of [`recipe`](#recipe-how-the-job-is-laid-out),
`space.` those of a space's [file](howto/own-declarations.md).
"""


def settings_page() -> str:
    """The whole page, in Markdown. Needs Hydra to be initialised on ``conf``."""
    sections = [_INTRODUCTION, _plain()]
    sections += [_section(group) for group in all_groups()]
    return "\n".join(sections)


def _section(group: Group) -> str:
    title = _TITLES.get(group.prefix)
    heading = f"## `{group.prefix}`" + (f": {title}" if title else "")
    rows = settings(group.prefix, group.value, group.check)
    return f"{heading}\n\n{_commands(group.commands)}\n\n{_table(rows)}"


def _plain() -> str:
    """Settings outside any group, from the schemas."""
    found: dict[str, list[str]] = {}
    defaults: dict[str, str] = {}
    for command, schema in COMMANDS.items():
        node = ConfigStore.instance().load(f"{schema}.yaml").node
        for name, value in node.items():
            if name not in groups_of(command) and not OmegaConf.is_config(value):
                found.setdefault(str(name), []).append(command)
                defaults[str(name)] = as_written(value)
    rows = [
        (f"`{name}`", _names(commands), f"`{defaults[name]}`", PLAIN_SETTINGS[name])
        for name, commands in sorted(found.items())
    ]
    table = markdown_table(("setting", "commands", "default", "meaning"), rows)
    return f"## Of a whole command\n\n{table}\n{_OPEN}"


def _table(rows: Sequence[Setting]) -> str:
    return markdown_table(
        ("setting", "values", "default", "meaning"),
        ((f"`{row.name}`", row.values, row.default or "required", row.meaning) for row in rows),
    )


def _commands(commands: Iterable[str]) -> str:
    return f"For {_names(commands)}."


def _names(commands: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in commands)
