"""``trainscout trace replay``: what a traced job's step takes on a cluster."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, write_output
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

from .step import HOSTS

NETWORKS = ("whitebox", "flow")


def main(arguments: Sequence[str]) -> int:
    """Predict, write the files asked for, and show the step."""
    options = _parser().parse_args(arguments)
    # NumPy, numba and the tables take a second to load; --help does not need them.
    from trainscout.simulators.predictor.io.terminal import show
    from trainscout.simulators.predictor.kernels.measured import load_measured
    from trainscout.simulators.predictor.replay.rules import read_rules
    from trainscout.simulators.predictor.uncertainty.calibration import read_calibration
    from trainscout.simulators.virtual_cluster.allocator.allocator_settings import (
        AllocatorSettings,
    )
    from trainscout.simulators.virtual_cluster.traces.files import read_directory
    from trainscout.simulators.virtual_cluster.traces.perfetto import write_perfetto

    from .report import memory_counters, report, to_dict
    from .rules import FIELD
    from .step import replay_ranks

    check_output("--json", options.json)
    check_output("--perfetto", options.perfetto, [options.json])
    if options.model_flops is not None:
        require_positive("--model-flops", options.model_flops)
    catalogue = load_catalogue()
    cluster, gpu = catalogue.machines(options.cluster, options.gpu, prefix="--")
    require_choice("--network", options.network, NETWORKS)
    if options.topology is not None and options.network != "flow":
        problem = "is not looked at with --network whitebox"
        raise InputError("--topology", options.topology, problem, "--network flow")
    switches = None
    if options.network == "flow":
        switches = catalogue.topologies.chosen("--topology", options.topology or "rail_optimised")
    framework = catalogue.framework_of_script(options.framework)
    traces = read_directory(options.traces)
    step = replay_ranks(
        traces,
        gpu,
        cluster,
        framework,
        host=options.host,
        calibration=None if options.calibration is None else read_calibration(options.calibration),
        measured=None
        if options.measured_kernels is None
        else load_measured(options.measured_kernels),
        allocator=None
        if options.alloc_conf is None
        else AllocatorSettings.parse(options.alloc_conf),
        model_flops=options.model_flops,
        rules=None if options.rules is None else read_rules(options.rules, FIELD),
        switches=switches,
    )
    if options.json is not None:
        write_output("--json", options.json, json.dumps(to_dict(step), indent=1) + "\n")
    if options.perfetto is not None:
        times = {rank.rank: rank.times for rank in step.ranks}
        played = [trace for trace in traces if trace.header.rank in times]
        counters = {rank.rank: memory_counters(rank) for rank in step.ranks}
        write_perfetto(options.perfetto, played, times, "--perfetto", counters)
    show(report(step))
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "trace replay",
        "Predict a step from the traces of a job's ranks (all of them, or one of each kind): step "
        "time, where it goes, memory, and how sure that is.",
        """
# the traces in traces/ on the cluster they were made for
trainscout trace replay traces --cluster h800_96
# on other GPUs, with the host times declared for Megatron-Core, and a timeline to look at
trainscout trace replay traces --cluster h100_64 --framework megatron_core --perfetto step.json.gz
""",
    )
    parser.add_argument("traces", type=Path, help="folder of traces")
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="NAME",
        help="one of conf/cluster, 8xA100-80GB, or a YAML file",
    )
    parser.add_argument("--gpu", metavar="NAME", help="one of conf/gpu instead of the cluster's")
    parser.add_argument(
        "--framework",
        metavar="NAME",
        help="one of conf/framework: its host times and allocator (default: host times of the one "
        "whose code launches)",
    )
    parser.add_argument(
        "--host",
        choices=HOSTS,
        default="declared",
        help="what the host takes: as the framework declares (default), or the CPU seconds of the "
        "machine that traced, emulation's among them",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="corrections of trainscout calibrate",
    )
    parser.add_argument(
        "--rules",
        type=Path,
        metavar="FILE",
        help="Python with a function edges(operations): dependencies of your own",
    )
    parser.add_argument(
        "--network",
        default="whitebox",
        help="whitebox, each transfer alone at its price (default); flow, transfers share links",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="switches of --network flow, in conf/topology (default rail_optimised)",
    )
    parser.add_argument(
        "--measured-kernels", type=Path, metavar="PATH", help="your own table of kernels"
    )
    parser.add_argument(
        "--alloc-conf", metavar="TEXT", help="as PYTORCH_CUDA_ALLOC_CONF, for the memory"
    )
    parser.add_argument(
        "--model-flops", type=float, metavar="FLOP", help="of one step of the job, for the MFU"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the prediction here")
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write a timeline for Perfetto here"
    )
    return parser
