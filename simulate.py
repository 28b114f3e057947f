"""Predict one training recipe: ``python simulate.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Group
from rich.text import Text

from conf.build import build_declared, build_recipe, build_value
from conf.commands import HeatMapChoice, LaunchChoice, refuse_unknown
from conf.door import OK, run_command
from conf.output import output_choice
from conf.simulators import build_simulator
from reports.experts import expert_record, expert_report
from reports.for_programs import prediction_csv, prediction_json
from reports.heat_map import heat_map
from reports.launch import (
    Launch,
    check_framework,
    launch_record,
    launch_words,
    launches,
    write_launches,
)
from reports.network import network_record, network_report
from reports.tables import prediction_report
from reports.terminal import show
from reports.timeline.files import write_timeline_files
from simulators.base import check_simulator, get_simulator
from simulators.errors import InputError
from simulators.output import show_text, write_output
from simulators.replay.expert_load import expert_load
from simulators.replay.network_use import network_use
from simulators.replay.simulator import ReplaySimulator
from simulators.replay.timeline_choice import TimelineChoice
from simulators.validity import check_job


def simulate(config: DictConfig) -> int:
    refuse_unknown(config, "simulation_schema")
    output = output_choice(config)
    spec = build_simulator(config)
    simulator = get_simulator(spec)
    job = build_declared(config).job(build_recipe(config.recipe))
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
    use = load = None
    if isinstance(simulator, ReplaySimulator):
        load = expert_load(job, prediction, simulator)
        if spec.network is not None:
            use = network_use(job, simulator.workload(job), spec.network, spec.calibration)
            if heat_map_file is not None:
                write_output("heat_map.file", Path(heat_map_file), heat_map(use))
    found: tuple[Launch, ...] = ()
    if launch.directory is not None:
        found = launches(job, launch.framework)
        write_launches(Path(launch.directory), job, found)
    if output.format == "json":
        beside: dict[str, Any] = {}
        if load is not None:
            beside["experts"] = expert_record(load)
        if use is not None:
            beside["network"] = network_record(use)
        if found:
            beside["launch"] = launch_record(found)
        show_text(prediction_json(prediction, job, beside))
        return OK
    if output.format == "csv":
        show_text(prediction_csv(prediction, job))
        return OK
    report = [prediction_report(prediction, job, output.verbosity)]
    if output.verbosity == "quiet":
        load = use = None
    if load is not None:
        report += [Text(), expert_report(load)]
    if use is not None:
        report += [Text(), network_report(use)]
    if found:
        report += [Text(), Text(f"Launch files in {launch.directory}:")]
        report += [Text(f"  {line}") for line in launch_words(found)]
    show(Group(*report))
    return OK


if __name__ == "__main__":
    sys.exit(run_command("simulate", simulate))
