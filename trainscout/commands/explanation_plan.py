"""From a composed configuration to the recipes that ``trainscout explain`` compares, checked."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from trainscout.commands.schemas import refuse_unknown
from trainscout.commands.simulator_choice import build_simulator
from trainscout.conf.build import build_question, build_value, hydra_catalogue
from trainscout.conf.counted_gpus import counts_gpus
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.space import Space
from trainscout.optimizer.union import compile_space
from trainscout.optimizer.warm_start import read_recipes, recipes_file
from trainscout.reports.launch_import.read import ImportedLaunch, read_launch
from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid, would_do
from trainscout.simulators.registry import SimulatorSpec, check_simulator

BEST = "best"
"""``against=best``: the best recipe of ``space=``, searched for now."""


@dataclass(frozen=True)
class Compared:
    """One recipe of a comparison: what it is called, and where it comes from."""

    name: str
    origin: str
    recipe: Recipe


@dataclass(frozen=True)
class ExplanationPlan:
    """What is to be explained.

    ``first`` (None: no recipe was named, so the best of ``space``) beside ``other`` (None: alone,
    unless ``search_best``). ``imported`` is what launch arguments said (None: there were none);
    ``stored_step_s`` the step that an earlier search predicted for ``other``.
    """

    question: Question
    space_spec: Mapping[str, Any]
    space: Space
    options: SearchOptions
    simulator: SimulatorSpec
    first: Compared | None
    other: Compared | None
    search_best: bool
    imported: ImportedLaunch | None
    stored_step_s: float | None


def build_explanation(config: DictConfig, overrides: Collection[str] = ()) -> ExplanationPlan:
    """Read a composed configuration; ``overrides`` are the command line's.

    Raises:
        InputError: for the first setting that cannot be used.
    """
    refuse_unknown(config, "explanation_schema")
    question, imported = build_question(config), None
    catalogue = hydra_catalogue()
    stated = {override.partition("=")[0].lstrip("+~") for override in overrides}
    if counts_gpus(question.cluster.name):
        stated.add("gpus")
    if config.given is not None:
        imported = read_launch(
            config.given,
            question,
            stated,
            functools.partial(catalogue.models.chosen, "model"),
            catalogue.frameworks.__getitem__,
        )
        question = imported.question
        question.check()
    a, b = (_fields(name, config[name]) for name in ("a", "b"))
    base = Recipe() if imported is None else imported.recipe
    first = _recipe("a", a, base)
    _check(question, "a" if imported is None else "given", first, config.given)
    name, origin = ("a", "a.*") if imported is None else ("yours", imported.origin)
    if imported is not None and a:
        origin += " with a.*"
    other, stored_step_s = None, None
    if b and config.against is not None:
        allowed = "b.* or against="
        raise InputError("against", config.against, "is given beside b.*", allowed)
    if b:
        other = Compared("b", f"{name} with b.*", _recipe("b", b, first))
    elif config.against not in (None, BEST):
        if (meant := nearest_name(config.against, [BEST])) and not Path(config.against).exists():
            allowed = f"{BEST}, or the directory of an earlier search"
            raise InputError("against", config.against, "is not here", allowed, meant)
        other, stored_step_s = _best_of(Path(config.against))
    if other is not None:
        _check(question, "b" if b else "against", other.recipe, config.against)
    # What is profiled with nothing said ran on one GPU.
    named = imported or a or b or config.against or config.profile.file
    space_spec: Any = OmegaConf.to_container(config.space, resolve=True)
    spec = build_simulator(config)
    check_simulator(spec, question.gpu, question.cluster)
    return ExplanationPlan(
        question=question,
        space_spec=space_spec,
        space=compile_space(space_spec, question),
        options=build_value(SearchOptions, "search", config.search),
        simulator=spec,
        first=Compared(name, origin, first) if named else None,
        other=other,
        search_best=config.against == BEST,
        imported=imported,
        stored_step_s=stored_step_s,
    )


def _fields(name: str, group: Any) -> dict[str, Any]:
    if not isinstance(group, DictConfig):
        files = "against= a search's results, given= your launch script"
        raise InputError(name, group, "is no recipe", f"{name}.tp=4 and the like; {files}")
    plain: Any = OmegaConf.to_container(group, resolve=True)
    return dict(plain)


def _recipe(name: str, fields: Mapping[str, Any], base: Recipe) -> Recipe:
    """``base`` with the fields that were said."""
    return build_value(Recipe, name, {**dataclasses.asdict(base), **fields})


def _check(question: Question, name: str, recipe: Recipe, value: object) -> None:
    """Refuse a recipe that cannot be launched, under its name on the command line."""
    broken = why_invalid(question.job(recipe))
    if broken is None:
        return
    if name in ("a", "b"):
        value = getattr(recipe, broken.field, None)
        allowed = would_do(question.job(recipe), broken)
        raise InputError(f"{name}.{broken.field}", value, broken.reason, allowed)
    problem = f"cannot be launched on {question.cluster.name}: {broken.reason}"
    advice = f"a.{broken.field}= or cluster.num_nodes= to change it" if name == "given" else None
    raise InputError(name, value, problem, advice)


def _best_of(path: Path) -> tuple[Compared, float | None]:
    """The best recipe of an earlier search, and the step it was predicted to take."""
    recipes = read_recipes("against", path)
    if not recipes:
        raise InputError(
            "against", str(path), "holds no recipe: nothing fitted there", "a search's directory"
        )
    step_s = None
    file = recipes_file(path) if path.is_dir() else path
    if file.suffix == ".json":
        entries = json.loads(file.read_text("utf-8"))
        entry = entries[0] if isinstance(entries, list) else entries
        prediction = entry.get("prediction", {})
        if not isinstance(prediction, dict):
            problem = f"has {prediction!r} as the prediction of a recipe"
            raise InputError("against", str(file), problem, "a file as a search wrote it")
        step_s = prediction.get("step_time_s")
    return Compared("best", f"best of {path}", recipes[0]), step_s
