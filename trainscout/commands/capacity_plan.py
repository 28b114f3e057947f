"""From a composed configuration to everything one capacity study needs, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from trainscout.commands.output_choice import OutputChoice, output_choice
from trainscout.commands.schemas import refuse_unknown
from trainscout.commands.simulator_choice import build_simulator
from trainscout.conf.build import build_value, hydra_catalogue
from trainscout.conf.catalogue import Catalogue, command_defaults
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.study import prepare_search
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.planning.cells import Cell, Declarations, SearchSettings, study_cells
from trainscout.planning.goodput import Reliability, goodput
from trainscout.planning.schedule import check_schedule
from trainscout.planning.study import Study
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, require_positive
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.registry import SimulatorSpec


@dataclass(frozen=True)
class CapacityPlan:
    """One study as declared; ``cells`` are its searches, those of what-ifs excepted."""

    study: Study
    declarations: Declarations
    settings: SearchSettings
    reliability: Reliability
    tracking: TrackingSettings
    cells: tuple[Cell, ...]
    n_jobs: int
    change_threshold: float
    fail_on_change: bool
    webhook: str | None
    wait_s: float
    schedule: str | None
    output: OutputChoice


def build_capacity(config: DictConfig) -> CapacityPlan:
    """Read a composed ``plan.yaml``; under Hydra, which finds the declarations a study names.

    Raises:
        InputError: for the first setting that cannot be used.
    """
    refuse_unknown(config, "capacity_schema")
    study = build_value(Study, "sweep", config.sweep)
    study.check()
    space: Any = OmegaConf.to_container(config.space, resolve=True)
    options = build_value(SearchOptions, "search", config.search)
    if options.storage is not None:
        problem = "means nothing here: cells are kept beside the study's runs"
        raise InputError("search.storage", options.storage, problem, "null")
    reliability = build_value(Reliability, "goodput", config.goodput)
    reliability.check()
    tracking = build_value(TrackingSettings, "tracking", config.tracking)
    tracking.check()
    framework = build_value(Framework, "framework", config.framework)
    simulator = build_simulator(config)
    declarations = named_declarations(study, framework, hydra_catalogue(), simulator)
    plan = CapacityPlan(
        study=study,
        declarations=declarations,
        settings=SearchSettings(space, options, simulator, config.seed),
        reliability=reliability,
        tracking=tracking,
        cells=study_cells(study, declarations),
        n_jobs=config.n_jobs,
        change_threshold=config.change_threshold,
        fail_on_change=config.fail_on_change,
        webhook=config.webhook,
        wait_s=config.wait_s,
        schedule=config.schedule,
        output=output_choice(config),
    )
    _check_settings(plan)
    check_prices(study, plan.cells)
    return plan


def check_prices(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse prices of GPUs that no cluster of the study has."""
    used = {cell.question.gpu.name for cell in cells}
    for path, prices in study.price_lists():
        for gpu, price in prices.items():
            if gpu not in used:
                raise InputError(f"{path}.{gpu}", price, "is of a GPU that no cluster has", used)


def check_cells(cells: Sequence[Cell], reliability: Reliability, settings: SearchSettings) -> None:
    """Refuse a study none of whose cells could be searched; writes nothing."""
    for cell in cells:
        cluster = cell.question.cluster
        goodput(reliability, cluster.num_gpus, cluster.num_nodes)
    refusal = None
    for cell in cells:
        try:
            prepare_search(settings.asked(cell))
            return
        except InputError as error:  # of this cell, perhaps: a precision that a GPU lacks
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def _check_settings(plan: CapacityPlan) -> None:
    if plan.n_jobs != -1:
        require_positive("n_jobs", plan.n_jobs)
    require_positive("change_threshold", plan.change_threshold, allow_zero=True)
    require_positive("wait_s", plan.wait_s, allow_zero=True)
    if plan.schedule is not None:
        check_schedule(plan.schedule)
    if plan.webhook is not None:
        try:
            address = urlsplit(plan.webhook)
            known = address.scheme in ("http", "https") and bool(address.hostname)
            address.port  # noqa: B018 - looking at it checks it
        except ValueError:
            known = False
        if not known:
            raise InputError("webhook", plan.webhook, "is no address", "https://...")


def named_declarations(
    study: Study, framework: Framework, catalogue: Catalogue, simulator: SimulatorSpec
) -> Declarations:
    """What the study names: models, clusters with their GPUs, and switches, of which the
    simulator's are what there is without a name.

    Raises:
        InputError: for an unknown name, or a declaration that cannot be used.
    """
    others = (what_if.cluster for what_if in study.what_ifs.values())
    names = dict.fromkeys([*study.clusters, *(name for name in others if name is not None)])
    models = {name: catalogue.models.chosen("model", name) for name in study.models}
    clusters: dict[str, tuple[Cluster, Gpu]] = {}
    for name in names:
        gpu, _, cluster = name.rpartition("@")
        clusters[name] = catalogue.machines(cluster, gpu or None)
    return Declarations(models, clusters, framework, _topologies(study, catalogue, simulator))


def _topologies(
    study: Study, catalogue: Catalogue, simulator: SimulatorSpec
) -> tuple[SwitchFabric, ...]:
    if simulator.network is None:
        if study.topologies:
            problem = "are not looked at with network=whitebox"
            named = list(study.topologies)
            raise InputError("sweep.topologies", named, problem, "network=flow, packet or hybrid")
        return ()
    own = simulator.network.fabric
    if not study.topologies:
        return (own,)
    if own != catalogue.topologies[command_defaults("plan")[1]["topology"]]:
        problem = "is not looked at: the study names its switches"
        raise InputError("topology", own.name, problem, "no topology, or no sweep.topologies")
    # Those that take over another say its name too.
    return tuple(replace(catalogue.topologies[name], name=name) for name in study.topologies)
