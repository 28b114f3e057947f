"""The page ``docs/reference.md``: every setting of every command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from trainscout.commands.schemas import COMMANDS, groups_of
from trainscout.completion import SETTINGS
from trainscout.conf.build import build_question, build_value
from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.objective import Objective
from trainscout.planning.fabric_prices import FabricPrices
from trainscout.planning.study import Study, Target, WhatIf
from trainscout.reference.settings import Check, Setting, as_written, settings
from trainscout.reports.launch.directory import check_framework
from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.network.hybrid.settings import HybridSettings
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.question import layers
from trainscout.simulators.predictor.question.diffusion import Diffusion
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import PerLayerInput
from trainscout.simulators.predictor.question.pooled import Pooled
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tower import Convolution, Tower
from trainscout.simulators.predictor.question.training import ModulePrecision
from trainscout.simulators.predictor.question.tuning import Distillation, Dpo, Lora
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import check_simulator

TEXTS: Mapping[str, Any] = read_yaml(Path(__file__).with_name("texts.yaml"))
"""What the pages say around their tables."""


def settings_page() -> str:
    """The whole page, in Markdown. Needs Hydra to be initialised on ``conf``."""
    sections = [TEXTS["settings"], _plain()]
    titles = list(TEXTS["settings_of"])
    groups = sorted(all_groups(), key=lambda group: titles.index(group.prefix))
    sections += [_section(group) for group in groups]
    return "\n".join(sections)


def _section(group: Group) -> str:
    heading = f"## `{group.prefix}`: {TEXTS['settings_of'][group.prefix]}"
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


# The groups of settings: each has a valid value to vary, and checks that know what is allowed.

VERIFICATIONS = ("none", "traced")
# Valid ones of each mixer, to vary.
_COMPRESSED = layers.CompressedAttention(1024, 128, out_groups=8, out_rank=1024, rate=4)
_MIXERS = {
    "attention": layers.AttentionMixer(),
    "attention.index": layers.Index(heads=64, dim=128, top_k=2048),
    "mamba2": layers.Mamba2(heads=128, head_dim=64, state=128),
    "mamba1": layers.Mamba1(inner=8192, state=16, rank=256),
    "short_conv": layers.ShortConv(channels=2048),
    "delta": layers.DeltaNet(k_heads=16, v_heads=32, k_dim=128, v_dim=128),
    "compressed": _COMPRESSED,
    "compressed.index": layers.Index(heads=64, dim=128, top_k=512),
}
_LATENTS = Diffusion(64, 512, (4096, 3072))
_TOWER = Tower("vision", 27, 1152, 16, 4304, patch_size=588, patches=1024)
_CONVOLUTION = Convolution(384, 1280, 2)


@dataclass(frozen=True)
class Group:
    """Settings that share a prefix. ``commands`` have them; ``value`` is a valid one to vary."""

    prefix: str
    commands: tuple[str, ...]
    value: Any
    check: Check


def all_groups() -> list[Group]:
    """Every group of every command, with the groups inside them.

    Needs Hydra to be initialised on ``conf``.
    """
    question = build_question(compose("config"))
    groups: list[Group] = []
    classes = {prefix: cls for name in COMMANDS for prefix, cls in groups_of(name).items()}
    for prefix, cls in classes.items():
        commands = tuple(name for name in COMMANDS if prefix in groups_of(name))
        value = getattr(question, prefix, None)
        value = value or build_value(cls, prefix, compose(SETTINGS[commands[0]])[prefix])
        groups.append(Group(prefix, commands, value, _check(prefix, question.job)))
        groups += _inside(prefix, commands)
    plan = ("plan",)
    study = build_value(Study, "sweep", compose("plan").sweep)
    groups += [
        Group("sweep", plan, study, Study.check),
        Group("sweep.targets.<name>", plan, Target(), lambda target: target.check("target")),
        Group("sweep.what_ifs.<name>", plan, WhatIf(), lambda what_if: what_if.check("what_if")),
    ]
    return groups


def _check_mixer(name: str, value: Any) -> None:
    name, _, inner = name.partition(".")
    parts: dict[str, Any] = {"attention": layers.AttentionMixer(), "compressed": _COMPRESSED}
    parts = {name: replace(parts[name], **{inner: value}) if inner else value}
    layers.Mixer(**parts).check("kind")


def _inside(prefix: str, commands: tuple[str, ...]) -> list[Group]:
    """Groups inside a group: fields that are dataclasses, or go to one as they are."""
    if prefix == "training":
        return [
            Group("training.lora", commands, Lora(16), Lora.check),
            Group("training.dpo", commands, Dpo(), lambda _: None),
            Group(
                "training.distillation",
                commands,
                Distillation(load_catalogue().models["qwen3_8b"]),
                Distillation.check,
            ),
            Group("training.module_precision", commands, ModulePrecision(), ModulePrecision.check),
        ]
    if prefix == "model":
        model = load_catalogue().models["deepseek_v3"]
        return (
            [
                Group(f"model.{name}", commands, getattr(model, name), lambda value: value.check())
                for name in ("moe", "mla")
            ]
            + [
                Group(f"model.kinds.<name>.{name}", commands, value, partial(_check_mixer, name))
                for name, value in _MIXERS.items()
            ]
            + [
                Group(
                    "model.towers.<number>", commands, _TOWER, lambda tower: tower.check("tower")
                ),
                Group(
                    "model.towers.<number>.stem.<number>",
                    commands,
                    _CONVOLUTION,
                    lambda each: each.check("stem"),
                ),
                Group("model.per_layer_input", commands, PerLayerInput(1, 1), PerLayerInput.check),
                Group("model.diffusion", commands, _LATENTS, Diffusion.check),
                Group("model.pooled", commands, Pooled((1, 1)), Pooled.check),
            ]
        )
    if prefix == "network":
        packet = PacketSettings()
        return [
            Group("network.packet", commands, packet, PacketSettings.check),
            Group("network.packet.dcqcn", commands, packet.dcqcn, _unchecked),
            Group("network.packet.timely", commands, packet.timely, _unchecked),
            Group("network.packet.swift", commands, packet.swift, _unchecked),
            Group("network.packet.hpcc", commands, packet.hpcc, _unchecked),
            Group("network.hybrid", commands, HybridSettings(), HybridSettings.check),
        ]
    return []


def _check(prefix: str, job_of: Callable[[Recipe], Job]) -> Check:
    checks: dict[str, Check] = {
        "fabric_prices": _check_prices,
        "recipe": lambda recipe: _check_recipe(job_of(recipe)),
        "launch": lambda choice: check_framework(choice.framework),
        "objective": lambda choice: Objective(choice.names),
        "simulator": lambda choice: check_simulator(choice.name, job_of(Recipe()).gpu),
        "verify": lambda choice: require_choice("verify.name", choice.name, VERIFICATIONS),
    }
    return checks.get(prefix, lambda value: getattr(value, "check", _unchecked)())


def _check_prices(prices: FabricPrices) -> None:
    prices.check("fabric_prices")


def _unchecked(*value: object) -> None:
    """Paths and counts that only the place or the step they are for can refuse."""


def _check_recipe(job: Job) -> None:
    broken = why_invalid(job)
    if broken is None:
        return
    # Rules say what would be right in the words they are shown with.
    allowed = re.search(r"(?:is not one of|must be) (.+?)(?:, or left out)?$", broken.reason)
    value = getattr(job.recipe, broken.field)
    raise InputError(f"recipe.{broken.field}", value, broken.reason, allowed and allowed[1])
