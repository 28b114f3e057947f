"""Predict one training recipe: ``trainscout simulate --help``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Group
from rich.text import Text

from trainscout.commands.assumed import assumed_fields
from trainscout.commands.entry_point import run_command
from trainscout.commands.listing import parameters
from trainscout.commands.output_choice import output_choice
from trainscout.commands.schemas import HeatMapChoice, LaunchChoice, refuse_unknown
from trainscout.commands.simulator_choice import build_simulator
from trainscout.conf.build import build_question, build_recipe, build_value
from trainscout.reports.experts import expert_record, expert_report
from trainscout.reports.for_programs import prediction_csv, prediction_json
from trainscout.reports.heat_map import heat_map
from trainscout.reports.launch import (
    Launch,
    check_framework,
    format_launch,
    launch_record,
    launches,
    write_launches,
)
from trainscout.reports.network import (
    meeting_record,
    meeting_report,
    network_record,
    network_report,
)
from trainscout.reports.terminal import show
from trainscout.reports.terminal_tables import prediction_report
from trainscout.reports.timeline.files import write_timeline_files
from trainscout.simulators.predictor.io.command_line import OK
from trainscout.simulators.predictor.io.output import show_text, write_output
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.expert_load import expert_load
from trainscout.simulators.predictor.replay.meeting import meeting
from trainscout.simulators.predictor.replay.network_use import network_use
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice
from trainscout.simulators.registry import check_simulator, get_simulator


def simulate(config: DictConfig) -> int:
    refuse_unknown(config, "simulation_schema")
    output = output_choice(config)
    spec = build_simulator(config)
    simulator = get_simulator(spec)
    declared = build_question(config)
    job = declared.job(build_recipe(config.recipe))
    check_job(job)
    check_simulator(spec, job.gpu, job.cluster)
    heat_map_file = build_value(HeatMapChoice, "heat_map", config.heat_map).file
    if heat_map_file is not None and spec.network is None:
        problem = "network=whitebox knows no links"
        raise InputError("heat_map.file", heat_map_file, problem, "network=flow, packet or hybrid")
    launch = build_value(LaunchChoice, "launch", config.launch)
    check_framework(launch.framework)
    timeline = build_value(TimelineChoice, "timeline", config.timeline)
    write_timeline_files(job, spec, simulator, timeline)
    prediction = simulator.simulate(job)
    use = load = met = None
    whole = False
    if isinstance(simulator, ReplaySimulator):
        load = expert_load(job, prediction, simulator)
        if spec.network is not None:
            workload = simulator.workload(job)
            use = network_use(job, workload, spec.network, spec.calibration)
            leaves_nodes = any(each.busy is not None for each in use.communicators)
            whole = spec.network.choice.whole_step and leaves_nodes
            if whole:
                met = meeting(job, workload, spec.network, spec.calibration)
            if heat_map_file is not None:
                write_output("heat_map.file", Path(heat_map_file), heat_map(use))
    found: tuple[Launch, ...] = ()
    if launch.directory is not None:
        found = launches(job, launch.framework)
        write_launches(Path(launch.directory), job, found)
    if output.format == "json":
        named = {"name": job.model.name, "parameters": parameters(job.model)}
        beside: dict[str, Any] = {"model": named}
        if load is not None:
            beside["experts"] = expert_record(load)
        if use is not None:
            beside["network"] = network_record(use)
        if whole:
            beside["whole_step"] = meeting_record(met)
        if found:
            beside["launch"] = launch_record(found)
        show_text(prediction_json(prediction, job, beside))
        return OK
    if output.format == "csv":
        show_text(prediction_csv(prediction, job))
        return OK
    assumed = assumed_fields(config, declared)
    report = [prediction_report(prediction, job, output.verbosity, assumed)]
    if output.verbosity == "quiet":
        load = use = None
        whole = False
    if load is not None:
        report += [Text(), expert_report(load)]
    if use is not None:
        report += [Text(), network_report(use)]
    if whole:
        report.append(meeting_report(met))
    if found:
        report += [Text(), Text(f"Launch files in {launch.directory}:")]
        report += [Text(f"  {line}") for line in format_launch(found)]
    show(Group(*report))
    return OK


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    return run_command("simulate", simulate, arguments)
