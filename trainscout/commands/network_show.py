"""Draw a fabric under a recipe's load: ``trainscout network show --help``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.commands.entry_point import run_command
from trainscout.commands.output_choice import output_choice
from trainscout.commands.schemas import refuse_unknown
from trainscout.commands.simulator_choice import build_congested
from trainscout.conf.build import build_question, build_recipe, build_value
from trainscout.planning.fabric_prices import FabricPrices
from trainscout.reports.fabric_picture import fabric_picture, picture_title
from trainscout.reports.network import network_record, network_report
from trainscout.reports.wording import format_usd
from trainscout.simulators.predictor.io.command_line import OK
from trainscout.simulators.predictor.io.output import json_text, show_text, write_output
from trainscout.simulators.predictor.io.terminal import show
from trainscout.simulators.predictor.network.collectives.play import check_playable
from trainscout.simulators.predictor.network.topology.parts import Parts, parts
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.network_use import network_use
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator


def network_show(config: DictConfig) -> int:
    refuse_unknown(config, "network_schema")
    output = output_choice(config)
    if output.format == "csv":
        raise InputError("format", "csv", "is no format of a fabric", ("table", "json"))
    prices = build_value(FabricPrices, "fabric_prices", config.fabric_prices)
    prices.check("fabric_prices")
    network = build_congested(config)
    if network is None:
        problem = "knows no links"
        raise InputError("network", "whitebox", problem, "network=flow, packet or hybrid")
    question = build_question(config)
    check_playable(network, question.cluster, question.gpu)
    job = question.job(build_recipe(config.recipe))
    check_job(job)
    use = network_use(job, ReplaySimulator().workload(job), network)
    title = picture_title(job, network.fabric.name)
    file = Path(config.file)
    write_output("file", file, fabric_picture(use, job, network.fabric.name))
    used = parts(job.cluster, job.gpu, network.fabric)
    usd = prices.of(used)
    if output.format == "json":
        record = {
            "file": str(file),
            "parts": asdict(used),
            "usd": usd,
            "communicators": network_record(use),
        }
        show_text(json_text(record))
        return OK
    report: list[RenderableType] = [Text(title, style="bold"), Text(_format_parts(used, usd))]
    if output.verbosity != "quiet":
        report += [Text(), network_report(use)]
    show(Group(*report, Text(f"Drawn: {file}")))
    return OK


def _format_parts(used: Parts, usd: float) -> str:
    switches = f"{used.leaves:,} leaves, {used.spines:,} spines, {used.cores:,} cores"
    return (
        f"{used.nics:,} NICs, {switches}, {used.cables:,} cables: {format_usd(usd)} at assumed"
        " prices (fabric_prices=)"
    )


main = partial(run_command, "network_show", network_show)
