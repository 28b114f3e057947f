"""A search over launches: the same loop, samplers, executors and stores as over recipes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from trainscout.optimizer.executors import make_executor
from trainscout.optimizer.legs import legs_of
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.samplers import make_sampler
from trainscout.optimizer.samplers.base import SearchSpec
from trainscout.optimizer.scripts.space import ScriptSpace
from trainscout.optimizer.space import Indices
from trainscout.optimizer.study import search_legs, stored_executor
from trainscout.optimizer.survey import Counts, Points, RowOf, Survey, reasons_of
from trainscout.optimizer.trial import OnProgress, SearchResult
from trainscout.pruning.launchable import Rejected
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.io.values import field_types, recorded
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.launch import Launch
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import SimulatorSpec

SIMULATOR = "trainscout.simulators.virtual_cluster.trials.simulator:ScriptSimulator"
"""What runs launches, where they are run."""
EARLY_STOP = SearchOptions("cmaes", n_trials=None, patience=20, min_trials=0, batch_size=8)
"""MAYA, section 7.3: CMA-ES, until the five best stay for 20 launches that fit."""
_UNEVEN = 1.5
"""Full recomputation makes 4/3 of a step's FLOPs at the same work."""


@dataclass(frozen=True)
class ScriptSearch:
    """A search over launches, checked. ``script``: digest of what is run, where it is a file."""

    space: ScriptSpace
    spec: Mapping[str, Any]
    survey: LaunchSurvey
    objective: Objective
    options: SearchOptions
    legs: tuple[SearchSpec, ...]
    script: str
    seed: int

    def identity(self) -> dict[str, Any]:
        """What must be equal for stored launches to continue this very search."""
        question = self.space.script_question
        options = self.options
        return {
            "script": self.script,
            "words": list(self.space.template.words),
            "files": dict(self.space.template.files),
            "space": dict(self.spec),
            "question": dataclasses.asdict(
                dataclasses.replace(question, gpu=question.gpu.without_sources())
            ),
            "objective": list(self.objective.names),
            "sampler": options.sampler,
            "batch_size": options.batch_size,
            "pruning": list(options.pruning),
            "seed": self.seed,
        }


def prepare_script_search(
    space: ScriptSpace, spec: Mapping[str, Any], options: SearchOptions, seed: int
) -> ScriptSearch:
    """Fill the space in and make ready to search it; nothing is run.

    What a step does (``work_per_step``) makes its rate the objective, else the step time is.

    Raises:
        InputError: for a space without launches, or settings that cannot be used.
    """
    options.check()
    if options.sampler == "exact":
        raise InputError("--search", "exact", "needs bounds, which no script has", "grid")
    survey = survey_launches(space)
    tactics = tactics_for(space, options.pruning, survey)
    options = dataclasses.replace(options, pruning=tactics)
    objective = Objective(("step_time",) if space.work is None else ("tokens_per_s",))
    whole = SearchSpec(options, survey, objective, seed, SimulatorSpec(SIMULATOR))
    legs = legs_of(whole)
    make_sampler(legs[0])
    script = _digest(space.template.words)
    return ScriptSearch(space, spec, survey, objective, options, legs, script, seed)


def run_script_search(
    search: ScriptSearch,
    executor: ExecutorOptions,
    storage: str,
    *,
    resume: bool,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Search, keeping every launch that was run in ``storage``.

    Raises:
        InputError: for a store that cannot be used.
    """
    started_s = time.monotonic()
    workers = make_executor(executor, search.space.question, SIMULATOR)
    stored = stored_executor(
        storage,
        search.identity(),
        "resume" if resume else "new",
        workers,
        search.survey,
        search.objective,
        read_launch,
    )
    result = search_legs(search.legs, stored, on_progress=on_progress, started_s=started_s)
    return dataclasses.replace(
        result,
        resumed_trials=stored.restored,
        unstored=stored.unstored,
        notes=(_note(search), *_uneven_work(search.space, result), *stored.notes),
    )


def _uneven_work(space: ScriptSpace, result: SearchResult) -> list[str]:
    """What to say where the step time ranks launches whose steps compute unlike amounts."""
    ran = [trial.prediction for trial in result.trials if trial.values and trial.prediction]
    work = [done for found in ran if (done := found.hfu * found.step_time_s)]
    if space.work is not None or not work or max(work) <= _UNEVEN * min(work):
        return []
    most = f"up to {max(work) / min(work):.1f} times the least"
    return [
        f"Steps compute unlike amounts, {most}, and the shortest wins: say work_per_step in the "
        "knob file (docs/howto/tune-a-script.md)"
    ]


def _note(search: ScriptSearch) -> str:
    survey = search.survey
    rejected = ", ".join(f"{entry.count:,} by {rule}" for rule, entry in survey.rejected.items())
    tactics = ", ".join(search.options.pruning) or "none"
    text = f"{len(survey):,} launches of {survey.distinct_points + survey.equal_points:,} points"
    return f"{text}{f' (left out: {rejected})' if rejected else ''}; tactics: {tactics}"


def _digest(words: Sequence[str]) -> str:
    """Of the script's text; of a module its name stands among the words."""
    path = Path(words[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def read_launch(record: Mapping[str, Any]) -> Launch:
    """The launch that ``dataclasses.asdict`` made, back from JSON; knobs that it has not as they
    come."""
    kinds = field_types(Launch)
    return Launch(**{name: recorded(kinds[name], value) for name, value in record.items()})


# Every launch of a script's space, known before the first is run.

MAX_POINTS = 200_000
# What must be known of a launch for a tactic's premise to be about it: fields of ``means``, and
# numbers that are ``given``.
_TACTICS_READ = {
    "recompute_oom": {"recompute", "pp", "num_layers"},
    "sequence_parallel_oom": {"sp", "tp"},
    "micro_batches": {"micro_batch", "tp", "pp", "global_batch_size"},
    "micro_batch_oom": {"micro_batch"},
    "virtual_stages_oom": {"vpp", "pp", "num_layers"},
    "sharding_oom": {"zero_stage", "pp"},
}


@dataclass(frozen=True)
class LaunchSurvey(Survey):
    """A survey whose recipes are launches. Points that start the very same are one."""

    point_by_launch: dict[Launch, Indices] = field(default_factory=dict)

    def point_of(self, recipe: Recipe) -> Indices:
        return self.point_by_launch[cast(Launch, recipe)]


def survey_launches(space: ScriptSpace) -> LaunchSurvey:
    """Fill in every distinct point of a space.

    Raises:
        InputError: when there are too many points, or none that can be launched.
    """
    if space.size > MAX_POINTS * 10:
        raise InputError("knobs", space.name, f"has {space.size:,} raw points", "fewer choices")
    launches: dict[tuple[Any, ...], int] = {}
    rows, kept, refused = [], [], []
    made: list[Launch] = []
    counts = Counts()
    for point in _points(space):
        launch, violation = space.candidate(point)
        if violation is not None:
            refused.append(point)
            counts.reject(violation.rule, 1, violation)
            continue
        assert isinstance(launch, Launch)
        started = (launch.start, launch.traced, launch.micro_batches, launch.linear)
        row = launches.setdefault(started, len(made))
        if row == len(made):
            made.append(launch)
        rows.append(row)
        kept.append(point)
    if not made:
        raise _nothing_to_launch(space, counts.rejected)
    names, resolved = _distinguished(
        space, made, [space.point(kept[rows.index(row)]) for row in range(len(made))]
    )
    points = np.array(kept, dtype=np.int16)
    numbers = np.array(rows, dtype=np.int64)
    _, first = np.unique(numbers, return_index=True)
    own = points[first]
    shape = (len(refused), len(space.knobs))
    return LaunchSurvey(
        space=replace(space, distinguished_by=names),
        # Search reads recipes one by one.
        recipes=cast(RecipeTable, resolved),
        points=Points(own),
        row_of=RowOf(space, points, numbers),
        rejected=counts.rejected,
        rejected_points=Points(np.array(refused, dtype=np.int16).reshape(shape)),
        rewritten={},
        point_by_launch={launch: tuple(map(int, own[row])) for row, launch in enumerate(resolved)},
    )


def tactics_for(space: ScriptSpace, names: Sequence[str], survey: LaunchSurvey) -> tuple[str, ...]:
    """The tactics whose premise is about these launches, as far as the user said what is what."""
    known = {*space.means, *space.script_question.given}
    if "global_batch_size" not in known and not _grows(survey):
        names = [name for name in names if name != "micro_batch_oom"]
    return tuple(name for name in names if name in _TACTICS_READ and known >= _TACTICS_READ[name])


def _grows(survey: LaunchSurvey) -> bool:
    """Whether steps work in proportion to their micro-batches: they have as many of them then. Of
    one batch in fewer of them the last may meet no gradients, and need less than smaller ones."""
    rates: dict[Launch, set[float | None]] = {}
    for launch in survey.point_by_launch:
        rate = None if launch.work is None else launch.work / launch.micro_batch
        rates.setdefault(replace(launch, micro_batch=1), set()).add(rate)
    return all(None not in each and len(each) == 1 for each in rates.values())


def _points(space: ScriptSpace) -> list[Indices]:
    """The distinct points that meet the constraints, in order."""
    found = []
    for indices in itertools.product(*(range(len(knob.choices)) for knob in space.knobs)):
        if space.holds(indices):
            found.append(indices)
            if len(found) > MAX_POINTS:
                problem = f"has more than {MAX_POINTS:,} points"
                raise InputError("knobs", space.name, problem, "fewer choices")
    return found


def _distinguished(
    space: ScriptSpace, launches: Sequence[Launch], points: Sequence[dict[str, Any]]
) -> tuple[tuple[str, ...], tuple[Launch, ...]]:
    """As few knobs without a meaning as distinguish the launches, next to their meaning (none that
    follows from the others, so that a tactic finds a launch's twins), and launches with them."""
    meant = set(space.means.values())
    names = [knob.name for knob in space.knobs if knob.name not in meant]
    for name in list(names):
        fewer = [each for each in names if each != name]
        keys = {
            (launch, tuple(point[each] for each in fewer))
            for launch, point in zip(launches, points, strict=True)
        }
        if len(keys) == len(launches):
            names = fewer
    resolved = tuple(
        replace(launch, settings=tuple((name, point[name]) for name in names))
        for launch, point in zip(launches, points, strict=True)
    )
    return tuple(names), resolved


def _nothing_to_launch(space: ScriptSpace, rejected: dict[str, Rejected]) -> InputError:
    if not rejected:
        texts = "; ".join(each.text for group in space.constraints for each in group)
        return InputError("constraints", texts, "no combination of the knobs meets them")
    total = sum(entry.count for entry in rejected.values())
    problem = f"fits none of the {total} combinations of knobs: {reasons_of(rejected.items())}"
    allowed = "another world size, or other choices"
    return InputError("--world-size", space.script_question.world_size, problem, allowed)
