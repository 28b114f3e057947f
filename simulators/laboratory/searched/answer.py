"""One published question, searched as anybody would search it, beside what was measured."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainscout.conf.catalogue import command_defaults, load_catalogue
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.enumeration import blocks
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.space import needed_numerics, with_choices
from trainscout.optimizer.study import prepare_search, run_search
from trainscout.optimizer.survey import Survey, check
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.optimizer.warm_start import distances
from trainscout.pruning.equivalence import canonical
from trainscout.pruning.recipe_table import RecipeTable, TableBuilder
from trainscout.reports.wording import format_recipe
from trainscout.simulators.laboratory.published.jobs.jobs import Declarations
from trainscout.simulators.laboratory.published.replay import replay_row
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.memory.bands import NO
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import NUMERICS
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import get_simulator

from .grouping import PublishedQuestion

SLOWER, FAR_SLOWER = 0.03, 0.08
"""By what fraction an answer may be predicted slower than the best measured run: in few questions
by more than the first, in none by more than the second."""
AS_FAST = "as fast"
DECLARED, ANY = NUMERICS[0], NUMERICS[-1]
_LESS = {
    "grad_dtype": "16-bit gradients",
    "fp8_dot_product_attention": "8-bit attention",
    "fp8_output_proj": "8-bit logits",
}
_SIMULATOR = "replay"
_GIB = 2**30


@dataclass(frozen=True)
class Answer:
    """One question: the fastest measured run, our answer, and how the two compare.

    Times in seconds, errors and ``slower`` as fractions (positive: predicted longer). ``measured``
    is the fastest run, ``replayed_s`` the prediction of it with the software it had.
    ``inside``: its recipe is in the space, else ``why`` not; ``predicted_s``: its recipe with the
    software of the question; ``fits``: or may; ``rank``: its place among our best, None
    behind them. ``best_s`` is our best, None where the search has none (then ``why``).
    ``software``: what the run's software has otherwise than the question's.
    ``numerics``: what of the numbers the search might change. Where the run computed something in
    fewer bits than the question declares (gradients, attention, logits) and our best in declared
    numerics, ``declared_s``, is slower, it is searched again with that, which counts where it is
    faster. ``tight_s``: the fastest
    recipe that would beat our best and may fit, with a probability of ``tight_chance``.
    """

    name: str
    model: str
    gpu: str
    num_gpus: int
    global_batch: int
    sequence_length: int
    precision: str
    asked_software: str
    runs: int
    recipes: int
    row: str
    source: str
    measured_recipe: str
    measured_s: float
    replayed_s: float | None
    software: str = ""
    inside: bool = False
    why: str = ""
    predicted_s: float | None = None
    fits: bool | None = None
    used_gib: float | None = None
    rank: int | None = None
    best_recipe: str = ""
    best_s: float | None = None
    points: int = 0
    simulated: int = 0
    proved: bool = False
    wall_s: float = 0.0
    numerics: str = DECLARED
    declared_s: float | None = None
    tight_s: float | None = None
    tight_chance: float | None = None

    @property
    def slower(self) -> float | None:
        """Our best against the fastest run."""
        return None if self.best_s is None else self.best_s / self.measured_s - 1

    @property
    def error(self) -> float | None:
        """The prediction of the fastest run, with its own software, against its measured step."""
        return None if self.replayed_s is None else self.replayed_s / self.measured_s - 1

    @property
    def cut(self) -> bool:
        """Whether the space holds the measured recipe, and memory keeps it out."""
        return self.inside and self.fits is False

    @property
    def verdict(self) -> str:
        """``as fast``, with the run's numerics where it is not without, or what the answer is lost
        by."""
        if self.best_s is None:
            return "no answer"
        if self.slower is not None and self.slower <= SLOWER:
            return AS_FAST if self.numerics == DECLARED else f"{AS_FAST} with {self.numerics}"
        return "lost: memory" if self.cut else "lost: prediction" if self.inside else "lost: space"


@functools.cache
def search_settings() -> tuple[Mapping[str, Any], SearchOptions, Objective]:
    """The space and objective of ``trainscout optimize``, and ``search=exact``."""
    named, (own, default) = load_catalogue(), command_defaults("config")
    space = named.contents("space").chosen("space", default["space"])
    search = named.contents("search").chosen("search", "exact")
    options = typed_value(SearchOptions, "search", {**search, **own.get("search", {})})
    objective = named.contents("objective").chosen("objective", default["objective"])
    return space, options, Objective(tuple(objective["names"]))


def default_software() -> Framework:
    """The framework of ``trainscout optimize``."""
    return load_catalogue().frameworks[command_defaults("config")[1]["framework"]]


def answer(published: PublishedQuestion, declarations: Declarations) -> Answer:
    """Search one question in this process."""
    started_s = time.monotonic()
    run, question = published.best, published.question
    replayed = replay_row(run.row, declarations, get_simulator(_SIMULATOR))
    ran = replayed.job or run.job
    blank = Answer(
        name=published.name,
        model=run.row.model,
        gpu=question.gpu.name,
        num_gpus=question.cluster.num_gpus,
        global_batch=question.training.global_batch_size,
        sequence_length=ran.sequence_length,
        precision=ran.precision,
        asked_software=question.framework.name,
        runs=len(published.runs),
        recipes=published.recipes,
        row=run.row.id,
        source=run.row.source,
        measured_recipe=format_recipe(ran.recipe, ran.dp),
        measured_s=run.measured_s,
        replayed_s=None if replayed.prediction is None else replayed.prediction.step_time_s,
    )
    try:
        found = _searched(published, ran)
    except InputError as error:
        found = {"why": f"not searched: {error}"}
    return dataclasses.replace(blank, **found, wall_s=round(time.monotonic() - started_s, 2))


def _searched(published: PublishedQuestion, ran: Job) -> dict[str, Any]:
    """What the search of a question says, and of the recipe that was measured."""
    question = published.question
    space, options, objective = search_settings()
    serial = ExecutorOptions(name="serial")
    asked = AskedSearch(question, space, objective, options, _SIMULATOR, serial)
    survey, *_ = prepare_search(asked)
    places = [place_of(recipe, survey) for recipe in _under_offered(ran, question)]
    place = next((each for each in places if each.inside), places[0])
    job = question.job(place.recipe)
    here = get_simulator(_SIMULATOR).simulate(job) if place.inside else None
    found = _whole(run_search(asked))
    numerics, declared_s = DECLARED, None
    less = _in_fewer_bits(ran, job)
    if less and _lags(found, published.best.measured_s):
        again = _whole(
            run_search(dataclasses.replace(asked, space=_allowing(space, less, question)))
        )
        if _faster(again, found):
            numerics = " and ".join(_LESS[name] for name in less)
            declared_s = _step_s(found.best[0]) if found.best else None
            found = again
    best = found.best[0] if found.best else None
    return {
        "numerics": numerics,
        "declared_s": declared_s,
        **_tight(found),
        "inside": place.inside,
        "why": place.why,
        "software": _software(ran, job),
        "predicted_s": here and here.step_time_s,
        "fits": here and here.memory.band != NO,
        "used_gib": here and _used_gib(here),
        "rank": _rank(found.best, place.recipe, here),
        "best_recipe": ""
        if best is None
        else format_recipe(best.recipe, question.job(best.recipe).dp),
        "best_s": None if best is None else _step_s(best),
        "points": found.space_size,
        "simulated": len(found.trials),
        "proved": found.certificate is not None and found.certificate.proved,
    }


def _whole(found: SearchResult) -> SearchResult:
    """A search that ended by itself: what one found until Ctrl-C answers no question."""
    if found.stopped == "interrupted":
        raise KeyboardInterrupt
    return found


def _tight(found: SearchResult) -> dict[str, float]:
    if not found.tight:
        return {}
    fastest = min(found.tight, key=_step_s)
    if fastest.prediction is None:
        raise AssertionError("a tight recipe has a prediction")
    chance = fastest.prediction.memory.fit_probability
    return {"tight_s": _step_s(fastest), "tight_chance": chance}


def _reduces_16(ran: Job, here: Job) -> bool:
    """Whether a run reduced gradients in 16 bits where its recipe here does in 32."""
    return here.framework.reduces_fp32 and not ran.framework.reduces_fp32


def _lags(found: SearchResult, measured_s: float) -> bool:
    return not found.best or _step_s(found.best[0]) > (1 + SLOWER) * measured_s


def _faster(one: SearchResult, other: SearchResult) -> bool:
    if not one.best:
        return False
    return not other.best or _step_s(one.best[0]) < _step_s(other.best[0])


def _in_fewer_bits(ran: Job, here: Job) -> dict[str, Any]:
    """Knobs by which a run computed in fewer bits than its recipe does here, and their values."""
    less: dict[str, Any] = {"grad_dtype": "bf16"} if _reduces_16(ran, here) else {}
    products = ("fp8_dot_product_attention", "fp8_output_proj")
    less |= {name: True for name in products if getattr(ran.recipe, name)}
    return less


def _allowing(
    space: Mapping[str, Any], less: Mapping[str, Any], question: Question
) -> dict[str, Any]:
    """The space with these values of these knobs, and nothing else that declared numerics leave
    out."""

    def choices(name: str, knob: Mapping[str, Any]) -> Mapping[str, Any]:
        entry = with_choices(name, knob)
        if "choices" not in entry:
            return entry
        kept = [
            each for each in entry["choices"] if needed_numerics(name, each, question) == DECLARED
        ]
        return {**entry, "choices": [less[name]] if name in less else kept}

    def part(spec: Mapping[str, Any]) -> dict[str, Any]:
        knobs = {
            name: choices(name, knob) if name in KNOBS else knob
            for name, knob in spec["knobs"].items()
        }
        return {**spec, "knobs": knobs}

    parts = {name: part(spec) for name, spec in space["parts"].items()}
    return {**space, "parts": parts, "numerics": ANY}


def _under_offered(ran: Job, question: Question) -> list[Recipe]:
    """A run's recipe under every framework that the question offers, its own first."""
    names = [each.name for each in question.framework.offered]
    names.sort(key=lambda name: name != ran.framework.name)
    return [dataclasses.replace(ran.recipe, framework=name) for name in names]


def _used_gib(prediction: Prediction) -> float:
    memory = prediction.memory
    return round((memory.capacity_bytes - memory.headroom_bytes) / _GIB, 2)


def _rank(best: tuple[Trial, ...], recipe: Recipe, here: Prediction | None) -> int | None:
    """The place among the best; None for one that is behind them or does not fit."""
    recipes = [trial.recipe for trial in best]
    return recipes.index(recipe) + 1 if here is not None and recipe in recipes else None


def _step_s(trial: Trial) -> float:
    if trial.prediction is None:
        raise AssertionError("a best recipe has a prediction")
    return trial.prediction.step_time_s


def _software(ran: Job, here: Job) -> str:
    """Facts of software in which two jobs of one recipe differ."""
    fields = {
        f.name: (getattr(ran.framework, f.name), getattr(here.framework, f.name))
        for f in dataclasses.fields(Framework)
        if f.name not in ("source", "space", "code", "launch", "alternatives", "lacks")
    }
    if ran.model.moe is not None and here.model.moe is not None:
        fields["dispatcher"] = (ran.model.moe.dispatcher, here.model.moe.dispatcher)
    words = [f"{name}={one}" for name, (one, other) in fields.items() if one != other]
    if _reduces_16(ran, here):
        words.append("gradients in 16 bits, which space.numerics=declared leaves out")
    return ", ".join(words)


SWITCHES = (
    *("framework", "cuda_graphs", "grad_dtype", "fp8_param_gather", "optimizer_states"),
    *("moe_dispatcher", "fp8_dot_product_attention", "fp8_output_proj"),
)
"""What software runs and how it is switched: a space leaves out settings that others are never
slower than, so a measured recipe is there where all but these are."""

_LAYOUT = ("tp", "pp", "cp", "ep", "micro_batch")
"""Knobs that no rule gives another spelling."""


@dataclass(frozen=True)
class Place:
    """``inside``: the space holds the recipe but for switches of software; ``recipe`` is then the
    one of the space that has most of them as it has. ``why``: what refuses it, or what the
    nearest recipe of the space has instead; "" inside."""

    recipe: Recipe
    inside: bool
    why: str = ""


def place_of(recipe: Recipe, survey: Survey) -> Place:
    """Look for a recipe among the launchable ones of a space."""
    job = survey.space.question.job(recipe)
    if (violation := why_invalid(job)) is not None:
        return Place(recipe, False, f"refused by {violation.rule}: {violation.reason}")
    recipe = canonical(job)
    table = _near(recipe, survey)
    apart = distances(table, recipe, but=SWITCHES)
    nearest = np.flatnonzero(apart == apart.min())
    switched = distances(table.take(nearest), recipe)
    near = table[int(nearest[np.argmin(switched)])]
    if apart.min() == 0:
        return Place(near, True)
    differences = ", ".join(
        f"{name}={getattr(recipe, name)} (nearest: {getattr(near, name)})"
        for name in KNOBS
        if name not in SWITCHES and getattr(recipe, name) != getattr(near, name)
    )
    return Place(recipe, False, f"in no recipe of the space: {differences}")


def _near(recipe: Recipe, survey: Survey) -> RecipeTable:
    """The recipes of a space that may be nearest. Of a space too large to list, a survey has only
    what bounds leave open: then those laid out alike, if there are any."""
    if survey.left_out is None:
        return survey.recipes
    found = TableBuilder()
    for block in blocks(survey.space):
        alike = np.ones(len(block.indices), dtype=np.bool_)
        for name in _LAYOUT:
            alike &= block.recipes.numbers(name) == getattr(recipe, name)
        if alike.any():
            found.add(check(block.take(alike), survey.space.question.job).recipes)
    return found.table() if found.size else survey.recipes
