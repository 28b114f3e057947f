"""A search over launches: the same loop, samplers, executors and stores as over recipes."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.optimizer.executors import make_executor
from trainscout.optimizer.legs import legs_of
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.samplers import SearchSpec, make_sampler
from trainscout.optimizer.scripts.space import ScriptSpace
from trainscout.optimizer.scripts.survey import LaunchSurvey, survey_launches, tactics_for
from trainscout.optimizer.study import search_legs, stored_executor
from trainscout.optimizer.trial import OnProgress, SearchResult
from trainscout.simulators.predictor.io.values import field_types, recorded
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.launch import Launch
from trainscout.simulators.registry import SimulatorSpec

SIMULATOR = "trainscout.simulators.virtual_cluster.trials.simulator:ScriptSimulator"
"""What runs launches, where they are run."""
EARLY_STOP = SearchOptions("cmaes", n_trials=None, patience=20, min_trials=0, batch_size=8)
"""MAYA, section 7.3: CMA-ES, until the five best stay for 20 launches that fit."""


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
    options = dataclasses.replace(options, pruning=tactics_for(space, options.pruning))
    options.check()
    if options.sampler == "exact":
        raise InputError("--search", "exact", "needs bounds, which no script has", "grid")
    survey = survey_launches(space)
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
        notes=(_note(search), *stored.notes),
    )


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
