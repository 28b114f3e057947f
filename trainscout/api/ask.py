"""What the Python API can be asked: each function composes what the commands compose."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trainscout.api.answers import (
    CapacityPlan,
    Explanation,
    Prediction,
    SearchResult,
    make_prediction,
)
from trainscout.api.questions import catalogue, plain
from trainscout.commands.capacity_plan import check_cells, check_prices, named_declarations
from trainscout.conf.catalogue import Catalogue, command_defaults
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import MEASURES, Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.trial import Progress
from trainscout.optimizer.union import compile_space
from trainscout.planning.answer import answer_cell
from trainscout.planning.cells import SearchSettings, study_cells
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import run_study
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Study
from trainscout.reports.capacity.progress import study_view
from trainscout.reports.comparison.comparison import compare
from trainscout.reports.comparison.predictions import Predictions
from trainscout.reports.nothing_found import why_no_recipe
from trainscout.reports.progress import progress_view
from trainscout.reports.whole_network import with_network_note
from trainscout.simulators.predictor.io.terminal import console_for
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.errors import InputError, require_positive
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.registry import (
    SimulatorSpec,
    calibrated,
    check_simulator,
    get_simulator,
)


def predict(
    question: Question,
    recipe: Recipe | None = None,
    *,
    simulator: SimulatorSpec | str = "replay",
    **fields: Any,
) -> Prediction:
    """One training step of one recipe.

    Args:
        question: what is trained on what.
        recipe: None: a recipe with every field at its default.
        simulator: which one predicts (``simulator()``), or its name.
        **fields: fields of ``Recipe`` to change: ``tp=4, pp=12, micro_batch=2``. The
            data-parallel size ``dp`` follows from the number of GPUs; a recipe that states it, as
            those of ``top_recipes.json`` do, has to agree.

    Returns:
        The prediction. A recipe that does not fit in memory is an answer too (``fits`` is false).

    Raises:
        InputError: for an unknown field, a recipe that cannot be launched, or another ``dp``.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="gpt175b", cluster="h800_96")
        >>> step = ts.predict(question, tp=4, pp=12, sp=True, tp_comm_overlap=True)
        >>> step.step_time_s < ts.predict(question, step.recipe, pp=24).step_time_s
        True
    """
    spec = calibrated(simulator, question.cluster)
    if not isinstance(recipe, Recipe | None):
        raise InputError("recipe", recipe, "is no Recipe", "ts.Recipe(tp=4), or tp=4 by itself")
    base = {} if recipe is None else dataclasses.asdict(recipe)
    changed = plain(fields)
    dp = changed.pop("dp", None)
    job = question.job(typed_value(Recipe, "recipe", {**base, **changed}))
    check_job(job)
    if dp not in (None, job.dp):
        raise InputError("recipe.dp", dp, "is not GPUs / (tp x pp x cp)", str(job.dp))
    check_simulator(spec, job.gpu, job.cluster)
    return make_prediction(get_simulator(spec).simulate(job), job, spec)


def search(
    question: Question,
    *,
    space: Choice | None = None,
    search: str | SearchOptions | None = None,
    objective: str | Sequence[str] | None = None,
    simulator: SimulatorSpec | str = "replay",
    executor: str | ExecutorOptions | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: bool | Callable[[Progress], None] | None = None,
    config_dir: str | Path | None = None,
    **options: Any,
) -> SearchResult:
    """The best recipes of a space with their predictions; those found so far on Ctrl-C.

    Nothing is written unless ``storage=`` names a place for it. What is left out is as in
    ``trainscout optimize``.

    Args:
        question: what is trained on what.
        space: the recipes to choose from (``ts.spaces``).
        search: how: ``exact``, ``tpe``, ``cmaes``, ``nsga2``, ``random``, ``grid``, ...
        objective: a measure (``cost``, ``step_time``, ``mfu``, ``tokens_per_s``, ``memory``), or
            several for their Pareto front.
        simulator: which one predicts (``simulator()``), or its name.
        executor: who simulates: ``serial`` in this process, ``loky`` in one a core, ...
        seed: the same seed and question give the same answer.
        resume: go on with the search that ``storage=`` holds.
        progress: show on stderr how far it is, or call this with it; None: show it in IPython.
        config_dir: a folder of your own declarations (see ``catalogue``).
        **options: fields of ``SearchOptions`` to change: ``n_trials=200``, ``top_k=5``,
            ``timeout_s=60``, ``storage="search.journal"``.

    Raises:
        InputError: for anything wrong in the arguments, before anything is simulated.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="gpt3_2b7", cluster="h100_64", num_nodes=1)
        >>> ts.search(question, search="exact", top_k=1).best.recipe.pp
        1
    """
    named, spec = catalogue(config_dir), calibrated(simulator, question.cluster)
    chosen = search_options(named, "config", search, plain(options))
    asked = AskedSearch(
        question,
        content_of(named, "config", "space", space),
        Objective(measures_of(named, objective)),
        chosen,
        spec,
        executor_options(named, executor),
        seed,
    )
    view = progress_view(console_for(sys.stderr), question.job, _verbosity(progress))
    with view:
        found = run_search(
            asked,
            storage=chosen.storage,
            resume=resume,
            on_progress=progress if callable(progress) else view.show,
        )
    noted = with_network_note(found, question, spec)
    return SearchResult(question, spec, noted, chosen.top_k)


def explain(
    a: Prediction | Recipe,
    b: Prediction | Recipe | None = None,
    *,
    question: Question | None = None,
    space: Choice | None = None,
    simulator: SimulatorSpec | str | None = None,
    config_dir: str | Path | None = None,
) -> Explanation:
    """Where each second of ``a`` goes, what ``b`` does otherwise, and why it takes more or less.

    Args:
        a: a prediction or a recipe.
        b: another of the same question; None: ``a`` alone, and what changing one knob would do.
        question: what both are about; None: what the predictions are about.
        space: whose knobs are changed one at a time; None: as in ``trainscout explain``.
        simulator: which one predicts; None: the predictions' own.
        config_dir: a folder of your own declarations (see ``catalogue``).

    Raises:
        InputError: for predictions of different questions, recipes without a question, or a
            recipe that cannot be launched.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="gpt175b", cluster="h800_96")
        >>> a = ts.predict(question, tp=8, pp=12, sp=True)
        >>> b = ts.predict(question, a.recipe, tp=4)
        >>> ts.explain(a, b).changes[0].fields
        ('tp',)
    """
    predicted = [each for each in (a, b) if isinstance(each, Prediction)]
    asked = _one("question", question, [each.question for each in predicted])
    if simulator is None and not predicted:
        simulator = "replay"
    chosen = _one("simulator", simulator, [each.simulator for each in predicted])
    spec = calibrated(chosen, asked.cluster)
    sides = {
        name: side.recipe if isinstance(side, Prediction) else side
        for name, side in (("a", a), ("b", b))
        if side is not None
    }
    for recipe in sides.values():
        check_job(asked.job(recipe))
    check_simulator(spec, asked.gpu, asked.cluster)
    named = catalogue(config_dir)
    return Explanation(
        compare(
            ("a", "a", sides["a"]),
            ("b", "b", sides["b"]) if "b" in sides else None,
            compile_space(content_of(named, "explain", "space", space), asked),
            Predictions(asked, get_simulator(spec)),
        )
    )


def plan(
    sweep: Choice | Study,
    *,
    goodput: Choice | None = None,
    framework: Choice | Framework | None = None,
    space: Choice | None = None,
    search: str | SearchOptions | None = None,
    simulator: SimulatorSpec | str = "replay",
    n_jobs: int = -1,
    seed: int = 0,
    store: str | Path | None = None,
    progress: bool | None = None,
    config_dir: str | Path | None = None,
    **overrides: Any,
) -> CapacityPlan:
    """A capacity study: the best recipe of each model on each cluster and size, and which of them
    meets the targets. What is left out is as in ``trainscout plan``.

    Args:
        sweep: the study; a mapping has the fields of ``planning.study.Study``.
        goodput: how often what fails, and what that costs.
        framework: what software runs.
        space: the recipes to choose from in every cell.
        search: how each cell is searched.
        simulator: which one predicts (``simulator()``), or its name.
        n_jobs: processes that search cells at the same time; -1: one a core.
        seed: the same seed and study give the same answer.
        store: a folder that keeps answered cells for the next time; None: they are not kept.
        progress: show on stderr how far it is; None: in IPython.
        config_dir: a folder of your own declarations (see ``catalogue``).
        **overrides: fields of the study to change: ``num_gpus=[64, 128]``, ``prefer="fastest"``.

    Raises:
        InputError: for anything wrong in the arguments, before anything is simulated.

    Example:
        >>> import trainscout as ts
        >>> changes = {"models": ["gpt3_2b7"], "clusters": ["h100_64"], "what_ifs": {}}
        >>> ts.plan("llama3_8b", num_gpus=[8], **changes).answers["gpt3_2b7"].num_gpus
        8
    """
    named, spec = catalogue(config_dir), SimulatorSpec.of(simulator)
    if n_jobs != -1:
        require_positive("n_jobs", n_jobs)
    study = sweep
    if not isinstance(study, Study) or overrides:
        base = dataclasses.asdict(study) if isinstance(study, Study) else None
        fields = content_of(named, "plan", "sweep", sweep) if base is None else base
        study = typed_value(Study, "sweep", {**fields, **overrides})
    study.check()
    reliability = typed_value(
        Reliability, "goodput", content_of(named, "plan", "goodput", goodput)
    )
    reliability.check()
    if not isinstance(framework, Framework):
        fields = named.with_alternatives(content_of(named, "plan", "framework", framework))
        framework = typed_value(Framework, "framework", fields)
    settings = SearchSettings(
        content_of(named, "plan", "space", space),
        search_options(named, "plan", search, {}),
        spec,
        seed,
    )
    declarations = named_declarations(study, framework, named, spec)
    cells = study_cells(study, declarations)
    check_prices(study, cells)
    check_cells(cells, reliability, settings)
    folder = nullcontext(store) if store is not None else tempfile.TemporaryDirectory()
    view = study_view(console_for(sys.stderr), _verbosity(progress))
    with folder as kept, view:
        outcome = run_study(
            study,
            declarations,
            reliability,
            AnswerStore(Path(kept), settings),
            functools.partial(answer_cell, settings=settings, why_nothing=why_no_recipe),
            n_jobs=n_jobs,
            on_progress=view.show,
        )
    return CapacityPlan(outcome, reliability)


def _verbosity(progress: object) -> str:
    """What a search or study shows of how far it is: without a word, in IPython and notebooks."""
    if progress is None:
        progress = hasattr(builtins, "__IPYTHON__")
    return "normal" if progress is True else "quiet"


def _one(name: str, value: Any, found: Sequence[Any]) -> Any:
    """What all sides are about, or what is given instead."""
    if value is not None:
        return value
    if not found:
        raise InputError(name, None, "is missing: recipes do not say it", f"{name}=")
    if any(each != found[0] for each in found):
        raise InputError(name, "...", "is not the same for both predictions", f"{name}=")
    return found[0]


Choice = str | Path | Mapping[str, Any]
"""A declaration by its name, its YAML file, or its fields."""


def content_of(named: Catalogue, command: str, group: str, value: Any) -> dict[str, Any]:
    """The fields of a declaration: those given, or of the command's choice."""
    if isinstance(value, Mapping):
        return dict(value)
    name = command_defaults(command)[1][group] if value is None else str(value)
    return named.contents(group).chosen(group, name)


def search_options(
    named: Catalogue, command: str, search: str | SearchOptions | None, changed: Mapping[str, Any]
) -> SearchOptions:
    """How to search; a command's own settings go before those of the algorithm's file."""
    if isinstance(search, SearchOptions):
        return dataclasses.replace(search, **changed)
    own = command_defaults(command)[0].get("search", {})
    fields = {**content_of(named, command, "search", search), **own, **changed}
    return typed_value(SearchOptions, "search", fields)


def measures_of(named: Catalogue, objective: str | Sequence[str] | None) -> tuple[str, ...]:
    """A measure by its name, or those of a file of the group ``objective``."""
    if not isinstance(objective, str | Sequence | None):
        raise InputError("objective", objective, "is no measure", MEASURES)
    if objective is not None and not isinstance(objective, str):
        return tuple(objective)
    if objective in MEASURES:
        return (str(objective),)
    return tuple(content_of(named, "config", "objective", objective)["names"])


def executor_options(named: Catalogue, executor: str | ExecutorOptions | None) -> ExecutorOptions:
    if isinstance(executor, ExecutorOptions):
        return executor
    content = content_of(named, "config", "executor", executor)
    return typed_value(ExecutorOptions, "executor", content)
