"""Predict one training recipe: ``trainscout simulate --help``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.commands.assumed import assumed_fields
from trainscout.commands.entry_point import run_command
from trainscout.commands.output_choice import output_choice
from trainscout.commands.schemas import LaunchChoice, refuse_unknown
from trainscout.commands.simulator_choice import build_congested, build_simulator
from trainscout.conf.build import build_question, build_recipe, build_value, given_overrides
from trainscout.reports.prediction_report import prediction_report
from trainscout.reports.whole_network import with_whole_network
from trainscout.simulators.predictor.io.command_line import OK
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.io.terminal import show
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice
from trainscout.simulators.registry import Simulator, SimulatorSpec, check_simulator, get_simulator

# What few ask for is loaded when it is asked for: half of what one recipe takes is loading.


def simulate(config: DictConfig) -> int:
    refuse_unknown(config, "simulation_schema")
    output = output_choice(config)
    spec = build_simulator(config)
    simulator = get_simulator(spec)
    question = build_question(config)
    job = question.job(build_recipe(config.recipe))
    check_job(job)
    check_simulator(spec, job.gpu, job.cluster)
    if config.rules is not None:
        simulator = _obeying(simulator, Path(config.rules), config)
    launch = build_value(LaunchChoice, "launch", config.launch)
    if launch != LaunchChoice():
        from trainscout.reports.launch.directory import check_framework

        check_framework(launch.framework)
    timeline = build_value(TimelineChoice, "timeline", config.timeline)
    if timeline != TimelineChoice():
        from trainscout.reports.timeline.files import write_timeline_files

        write_timeline_files(job, spec, simulator, timeline)
    prediction = simulator.simulate(job)
    if config.rules is None:
        prediction = with_whole_network(prediction, job, spec)
    extra: dict[str, Any] = {}
    below: list[RenderableType] = []
    if isinstance(simulator, ReplaySimulator):
        if job.model.moe is not None:
            from trainscout.reports.experts import expert_record, expert_report
            from trainscout.simulators.predictor.replay.expert_load import expert_load

            load = expert_load(job, prediction, simulator)
            if load is not None:
                extra["experts"] = expert_record(load)
                below += [Text(), expert_report(load)]
        if spec.network is not None:
            _add_network(job, spec, simulator, extra, below)
    chosen = any("recipe." in each for each in given_overrides(config))
    if not chosen and prediction.memory.headroom_bytes < 0:
        below += [Text(), Text("No recipe.* is given; trainscout optimize finds those that fit.")]
    if output.verbosity == "quiet":
        below = []
    if launch.directory is not None:
        from trainscout.reports.launch.directory import (
            format_launch,
            launch_record,
            launches,
            write_launches,
        )

        found = launches(job, launch.framework)
        write_launches(Path(launch.directory), job, found)
        if found:
            extra["launch"] = launch_record(found)
            below += [Text(), Text(f"Launch files in {launch.directory}:")]
            below += [Text(f"  {line}") for line in format_launch(found)]
    if output.format != "table":
        from trainscout.commands.listing import parameters
        from trainscout.reports.for_programs import prediction_csv, prediction_json

        if output.format == "csv":
            show_text(prediction_csv(prediction, job))
            return OK
        named = {"name": job.model.name, "parameters": parameters(job.model)}
        show_text(prediction_json(prediction, job, {"model": named, **extra}))
        return OK
    assumed = assumed_fields(config, question)
    more = [("More", "verbosity=verbose: all parts and stages, and what figures rest on")]
    report = prediction_report(prediction, job, output.verbosity, assumed, more)
    show(Group(report, *below))
    return OK


def _obeying(simulator: Simulator, path: Path, config: DictConfig) -> ReplaySimulator:
    """The simulator with the dependencies of a rule file."""
    from trainscout.simulators.predictor.replay.rules import FIELD, read_rules

    if not isinstance(simulator, ReplaySimulator):
        problem = f"are not known to simulator.name={simulator.name}"
        raise InputError(FIELD, path, problem, "simulator.name=replay or traced")
    others = {
        "timeline": build_value(TimelineChoice, "timeline", config.timeline) != TimelineChoice(),
        "network": build_congested(config) is not None,
    }
    for field, chosen in others.items():
        if chosen:
            raise InputError(FIELD, path, f"cannot be combined with {field}=", "one of both")
    return simulator.obeying(read_rules(path))


def _add_network(
    job: Job,
    spec: SimulatorSpec,
    simulator: ReplaySimulator,
    extra: dict[str, Any],
    below: list[RenderableType],
) -> None:
    """What a declared network does to the step: its record, its report."""
    from trainscout.reports.network import (
        network_record,
        network_report,
        whole_step_record,
        whole_step_report,
    )
    from trainscout.simulators.predictor.replay.network_use import network_use
    from trainscout.simulators.predictor.replay.whole_step import whole_step

    assert spec.network is not None
    workload = simulator.workload(job)
    use = network_use(job, workload, spec.network, spec.calibration)
    extra["network"] = network_record(use)
    below += [Text(), network_report(use)]
    leaves_nodes = any(each.busy is not None for each in use.communicators)
    if spec.network.choice.plays_whole_step and leaves_nodes:
        whole = whole_step(job, workload, spec.network, spec.calibration)
        extra["whole_step"] = whole_step_record(whole)
        below.append(whole_step_report(whole))


main = partial(run_command, "simulate", simulate)
