"""``trainscout trace kineto``: what a profile of a real GPU says, of any model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.counted_gpus import counted_gpus
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.traces import command_tables
from trainscout.simulators.virtual_cluster.traces.comparison import (
    busy,
    compare,
    measured_times,
    read_predicted,
)
from trainscout.simulators.virtual_cluster.traces.kineto import read_kineto

from .measured import MeasuredProfile, measured_profile
from .observed import gpu_of, kept_files, observed_classes, observed_record, write_files


def main(arguments: Sequence[str]) -> int:
    """``trainscout trace kineto``."""
    parser = command_parser(
        "trace kineto",
        "Show time by class of a profile of a real GPU, beside the prices of the very shapes that "
        "it recorded, and beside a replay's prediction if there is one. To compare with a recipe: "
        "trainscout explain profile.file=.",
        "trainscout trace kineto profile.json.gz\n"
        "trainscout trace kineto profile.json.gz --output measured/run7\n"
        "trainscout trace kineto profile.json.gz --predicted step.json.gz --rank 0",
    )
    parser.add_argument("profile", type=Path, metavar="FILE")
    parser.add_argument(
        "--predicted",
        type=Path,
        metavar="FILE",
        help="compare with this Perfetto file of a replay",
    )
    parser.add_argument(
        "--rank", type=int, default=0, metavar="R", help="the rank in it (default 0)"
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="declared GPU to price for (default: the one it names)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write measured_kernels/ and observed_factors.json",
    )
    options = parser.parse_args(arguments)
    recorded = read_kineto(options.profile)
    times = measured_times(recorded)
    parts = command_tables.profile_tables(recorded, times, busy(recorded.kernels))
    if options.predicted is not None:
        predicted, steps = read_predicted("--predicted", options.predicted, options.rank)
        compared = compare(times, max(recorded.steps, 1), predicted, steps)
        parts += command_tables.comparison_table(compared)
    if recorded.kernels:
        profile = measured_profile(options.profile, recorded)
        gpu = _gpu(options.gpu, profile, required=options.output is not None)
        if gpu is not None:
            parts += ["", *_prices(profile, gpu)]
            if options.output is not None:
                _write(options.output, profile, gpu)
    command_tables.show(parts)
    return OK


def _gpu(name: str | None, profile: MeasuredProfile, *, required: bool) -> Gpu | None:
    """The GPU to price for; None where the profile names none that is declared."""
    gpus = load_catalogue().gpus
    if name is not None:
        return gpus.chosen("--gpu", name)
    try:
        return gpu_of(profile, gpus)
    except InputError:
        if required:
            raise
        return None


def _node(world_size: int, gpu: Gpu) -> Cluster | None:
    """The server that so many GPUs usually come in; None where they are not of one, as how such
    are connected a profile does not say."""
    try:
        cluster, _ = counted_gpus("--gpu", f"{world_size}x{gpu.name}", load_catalogue().gpus)
    except InputError:
        return None
    return cluster if cluster.domain >= world_size else None


def _prices(profile: MeasuredProfile, gpu: Gpu) -> list[command_tables.Part]:
    """Measured kernels that ran alone beside the prices of their shapes, a step."""
    figures = ("measured", "shapes", "priced", "of it", "price", "error")
    table = plain_table("class", *(f"#{name}" for name in figures))
    found = observed_classes(profile.operations, profile.steps, gpu)
    for name, each in found.items():
        share = each.measured_s / each.seconds if each.seconds else 0.0
        table.add_row(
            name,
            command_tables.milliseconds(each.seconds),
            str(each.shapes),
            command_tables.milliseconds(each.measured_s),
            f"{share:.0%}",
            command_tables.milliseconds(each.priced_s) if each.shapes else "",
            "" if each.factor is None else f"{1 / each.factor - 1:+.1%}",
        )
    about = (
        f"A step ({profile.steps}, {profile.found}; {profile.earlier:,} kernels in none), and the "
        f"same shapes priced on {gpu.name}"
    )
    return [about, table]


def _write(directory: Path, profile: MeasuredProfile, gpu: Gpu) -> None:
    record = observed_record([profile], gpu, _node(profile.world_size or 1, gpu))
    write_files("--output", directory, kept_files(record, profile.operations, gpu))
