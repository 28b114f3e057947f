"""From a composed configuration to everything one search needs, checked."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from trainscout.commands.output_choice import OutputChoice, output_choice
from trainscout.commands.schemas import LaunchChoice, ObjectiveChoice, VerifyChoice, refuse_unknown
from trainscout.commands.simulator_choice import build_simulator
from trainscout.conf.build import build_question, build_value
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import prepare_search
from trainscout.optimizer.survey import INTERRUPTED
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.reports.launch.directory import check_framework
from trainscout.reports.progress import progress_view
from trainscout.simulators.predictor.io.terminal import console_for
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

if TYPE_CHECKING:
    from trainscout.optimizer.storage.trials import Mode


@dataclass(frozen=True, kw_only=True)
class SearchPlan(AskedSearch):
    """One search as declared; the best ``verified`` recipes are traced afterwards."""

    tracking: TrackingSettings
    launch: LaunchChoice
    verified: int
    resume: bool
    join: bool
    output: OutputChoice


def build_plan(config: DictConfig) -> SearchPlan:
    """Read a composed search configuration; ``check_plan`` says whether it can be searched.

    Raises:
        InputError: for the first setting that cannot be used.
    """
    refuse_unknown(config, "search_schema")
    space: Any = OmegaConf.to_container(config.space, resolve=True)
    plan = SearchPlan(
        question=build_question(config),
        space=space,
        objective=Objective(
            tuple(build_value(ObjectiveChoice, "objective", config.objective).names)
        ),
        options=build_value(SearchOptions, "search", config.search),
        simulator=build_simulator(config),
        executor=build_value(ExecutorOptions, "executor", config.executor),
        tracking=build_value(TrackingSettings, "tracking", config.tracking),
        launch=build_value(LaunchChoice, "launch", config.launch),
        verified=_verified(build_value(VerifyChoice, "verify", config.verify)),
        seed=config.seed,
        resume=config.resume,
        join=config.join,
        output=output_choice(config),
    )
    plan.tracking.check()
    check_framework(plan.launch.framework)
    if plan.join and plan.options.storage is None:
        problem = "needs a storage that every process of the search can reach"
        raise InputError("join", True, problem, "search.storage=<a path, or a database's URL>")
    return plan


def _verified(choice: VerifyChoice) -> int:
    """How many recipes to trace."""
    require_choice("verify.name", choice.name, ("none", "traced"))
    if choice.name == "none":
        return 0
    require_positive("verify.top_k", choice.top_k)
    from trainscout.simulators.virtual_cluster.traced.tracer import check_installed

    check_installed("verify.name")
    return choice.top_k


def check_plan(plan: SearchPlan, storage: str | None) -> bool:
    """Refuse a search that could not start, or not go on with ``storage``; writes nothing.

    A large space is sifted here, with its progress on stderr; returns whether that was
    interrupted."""
    console = console_for(sys.stderr)
    with progress_view(console, plan.question.job, plan.output.verbosity) as view:
        surveyed, *_ = prepare_search(plan, view.show)
    if storage is not None:
        from trainscout.optimizer.storage.trials import check_storage

        mode: Mode = "join" if plan.join else "resume" if plan.resume else "new"
        check_storage(storage, plan.identity(), mode)
    return surveyed.why_sampled == INTERRUPTED
