"""From a composed configuration to everything one search needs, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from conf.build import build_declared, build_value
from conf.commands import ObjectiveChoice, refuse_unknown
from conf.simulators import build_simulator
from optimizer.objective import Objective
from optimizer.options import ExecutorOptions, SearchOptions
from optimizer.question import Declared
from optimizer.study import prepare_search
from optimizer.tracking import TrackingSettings
from simulators.base import SimulatorSpec


@dataclass(frozen=True)
class SearchPlan:
    """One search as declared. ``space`` is a space file's content."""

    declared: Declared
    space: Mapping[str, Any]
    objective: Objective
    options: SearchOptions
    simulator: SimulatorSpec
    executor: ExecutorOptions
    tracking: TrackingSettings
    seed: int


def build_plan(config: DictConfig) -> SearchPlan:
    """Read a composed search configuration; ``check_plan`` says whether it can be searched.

    Raises:
        InputError: for the first setting that cannot be used.
    """
    refuse_unknown(config, "search_schema")
    space: Any = OmegaConf.to_container(config.space, resolve=True)
    plan = SearchPlan(
        declared=build_declared(config),
        space=space,
        objective=Objective(
            tuple(build_value(ObjectiveChoice, "objective", config.objective).names)
        ),
        options=build_value(SearchOptions, "search", config.search),
        simulator=build_simulator(config.simulator),
        executor=build_value(ExecutorOptions, "executor", config.executor),
        tracking=build_value(TrackingSettings, "tracking", config.tracking),
        seed=config.seed,
    )
    plan.tracking.check()
    return plan


def check_plan(plan: SearchPlan, store: Path | None) -> None:
    """Refuse a search that could not start, or not go on with ``store``; writes nothing.

    Raises:
        InputError: naming the setting.
    """
    prepare_search(
        plan.declared,
        plan.space,
        plan.objective,
        plan.options,
        simulator=plan.simulator,
        executor=plan.executor,
        storage=None if store is None else str(store),
        resume=store is not None,
        seed=plan.seed,
    )
