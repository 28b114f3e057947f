"""``trainscout live``: an unmodified script on a simulated cluster's clock."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.command_line import command_parser
from trainscout.simulators.predictor.io.output import (
    check_output,
    leave_no_empty_folder,
    make_folder,
)
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
    require_whole,
)
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.emulation.launch.launcher import (
    add_script,
    note_other_world,
    script_fields,
)
from trainscout.simulators.virtual_cluster.emulation.launch.rank_process import RankOptions
from trainscout.simulators.virtual_cluster.emulation.virtual_rank import check_platform
from trainscout.simulators.virtual_cluster.traces.collate.probe import parse_ranks
from trainscout.simulators.virtual_cluster.traces.files import trace_path

from .rank_process import LiveOptions
from .representation import Representation

if TYPE_CHECKING:
    from .network import Network
    from .prices import Prices

NETWORKS = ("whitebox", "flow")
HOSTS = ("cpu", "declared")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = command_parser(
        "live",
        "Run a training script unmodified, as several ranks of a job on virtual GPUs whose clocks "
        "are those of a simulated cluster.\n\nThe script's clocks read simulated time, so the "
        "step times, tokens/s and MFU that it prints are those of the simulated job. Losses and "
        "other values nobody could know without computing are inventions: they mean nothing.",
        """
# all eight ranks of a small job
trainscout live --world-size 8 --gpu h800 --cluster h800_96 -- train.py
# the first rank of each of four stages, standing for 96, transfers sharing links
trainscout live --world-size 96 --ranks 0,24,48,72 --network flow -- \\
    pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 ...
""",
        "0 ran; 1 the script failed, or fell silent (--timeout); 2 wrong input; 3 the script does "
        "what virtual GPUs do not; 4 ranks wait for each other for ever, or disagree",
        "--world-size N [options] -- SCRIPT ARGS",
    )
    add = made.add_argument
    add("--world-size", type=int, required=True, metavar="N", help="GPUs of the job")
    add(
        "--ranks",
        metavar="R[,R...]",
        help="ranks to run; every other acts like the one of its block, where equal blocks have "
        "one each, or like the nearest below (8-11 is a range)",
    )
    add("--all", action="store_true", help="run every rank")
    add("--gpu", metavar="NAME", help="a GPU in conf/gpu (default: the cluster's)")
    add(
        "--cluster",
        metavar="NAME",
        help="one of conf/cluster, 8xA100-80GB, or a YAML file; the job fills as much as it needs "
        "(default: the servers in which --gpu usually comes, or h800_96)",
    )
    add(
        "--framework",
        metavar="NAME",
        help="whose host times (default: that whose code launches)",
    )
    add(
        "--host",
        default="declared",
        help="what the host takes: declared, the framework's times, the same in every run "
        "(default); cpu, this machine's CPU time, the emulator's share included, and the "
        "driver's for each launch",
    )
    add(
        "--network",
        default="whitebox",
        help="whitebox, each transfer alone at its price (default); flow, transfers share links",
    )
    add(
        "--topology",
        default="rail_optimised",
        metavar="NAME",
        help="switches of --network flow, in conf/topology (default rail_optimised)",
    )
    add("--steps", type=int, metavar="N", help="end the script after so many optimizer steps")
    add("--cores", type=int, metavar="N", help="ranks that run at a time (default: all cores)")
    add(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="end when no message has come from a rank for so long, in wall seconds (default 600)",
    )
    add("--perfetto", type=Path, metavar="FILE", help="write the timeline for Perfetto")
    add("--traces", type=Path, metavar="DIR", help="write each rank's trace")
    add_script(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the ranks live; the exit code."""
    args = parser().parse_args(arguments)
    check_platform()
    script = script_fields(args)
    _check(args)
    catalogue = load_catalogue()
    if args.cluster is None:
        args.cluster = _usual_cluster(args.world_size, catalogue.gpus.get(args.gpu))
    cluster, gpu = catalogue.machines(args.cluster, args.gpu, prefix="--")
    framework = catalogue.framework_of_script(args.framework)
    who = Representation.by_neighbours(args.world_size, _ranks(args))
    options = _options(args, script, who, (cluster, gpu), framework)

    # These load numba and what prices are made of.
    from trainscout.simulators.predictor.replay.network_doubt import stated_share
    from trainscout.simulators.virtual_cluster.execution.step import used_part
    from trainscout.simulators.virtual_cluster.walk.launches import Launches

    from .rank_process import start_ranks
    from .report import show_report, show_unknown, write_timeline
    from .server import LiveError, LiveServer
    from .simulation import Simulation

    cluster = used_part(cluster, args.world_size)
    prices, network = _network(args, (cluster, gpu), framework, who)
    simulation = Simulation(
        who, prices, network, options.cost, Launches, record=args.perfetto is not None
    )
    note_other_world("live", args.world_size, script["script"])
    _banner(args, gpu, who, stated_share(cluster, switches=args.network == "flow"))
    server = LiveServer(
        simulation,
        lambda address: start_ranks(replace(options, address=address)),
        cores=args.cores or len(os.sched_getaffinity(0)),
        timeout_s=args.timeout,
        show=_printer(who),
        steps=args.steps,
    )
    try:
        measured = server.run()
    except LiveError as error:
        show_unknown(server.unknown)
        print(f"live: {error}", file=sys.stderr)
        return error.code
    finally:
        for rank in who.simulated if args.traces else ():
            leave_no_empty_folder(trace_path(args.traces, rank))
    show_report(simulation, measured)
    if args.perfetto is not None:
        write_timeline(args.perfetto, simulation)
    return 0


def _network(
    args: argparse.Namespace,
    machine: tuple[Cluster, Gpu],
    framework: Framework,
    who: Representation,
) -> tuple[Prices, Network]:
    from .network import WhiteBoxNetwork
    from .prices import Prices

    cluster, gpu = machine
    if args.network == "whitebox":
        return Prices(gpu, cluster, framework), WhiteBoxNetwork()
    from trainscout.simulators.predictor.network.topology.wiring import build_network

    from .network import FlowNetwork

    switches = load_catalogue().topologies.chosen("--topology", args.topology)
    network = FlowNetwork(build_network(cluster, gpu, switches), who)
    return Prices(gpu, cluster, framework, alone=True), network


def _ranks(args: argparse.Namespace) -> tuple[int, ...]:
    if args.all and args.ranks is not None:
        raise InputError("--all", args.ranks, "says something else than --ranks", "one of both")
    if args.ranks is not None:
        return parse_ranks("--ranks", args.ranks, args.world_size)
    if not args.all and args.world_size > 8:
        raise InputError("--ranks", "", "is missing for a large job", "0,8,16 or --all")
    return tuple(range(args.world_size))


def _options(
    args: argparse.Namespace,
    script: dict[str, Any],
    who: Representation,
    machine: tuple[Cluster, Gpu],
    framework: Framework,
) -> LiveOptions:
    """All but the address."""
    from trainscout.simulators.virtual_cluster.walk.host import HostCost

    cluster, gpu = machine
    cost = HostCost.of(framework, cluster, gpu, cpu=args.host == "cpu")
    job = RankOptions(
        world_size=args.world_size,
        rank=who.simulated[0],
        local_world_size=min(cluster.gpus_per_node, args.world_size),
        gpu=gpu.name,
        steps=args.steps,
        **script,
    )
    # The script may be in another folder.
    traces = args.traces and args.traces.absolute()
    return LiveOptions("", job, who.simulated, cost, traces, args.preload)


def _usual_cluster(world_size: int, gpu: Gpu | None) -> str:
    if gpu is None:
        return "h800_96"
    per_node = min(gpu.server.gpus_per_node, world_size)
    return f"{-(-world_size // per_node) * per_node}x{gpu.name}"


def _check(args: argparse.Namespace) -> None:
    require_whole("--world-size", args.world_size)
    require_choice("--network", args.network, NETWORKS)
    require_choice("--host", args.host, HOSTS)
    require_positive("--timeout", args.timeout)
    for option in ("--steps", "--cores"):
        if (number := vars(args)[option[2:]]) is not None:
            require_positive(option, number)
    check_output("--perfetto", args.perfetto)
    if args.traces is not None:
        make_folder("--traces", args.traces)


def _banner(args: argparse.Namespace, gpu: Gpu, who: Representation, between: str | None) -> None:
    ranks = ", ".join(map(str, who.simulated[:16])) + (" ..." if len(who.simulated) > 16 else "")
    print(
        f"live: {len(who.simulated)} of {who.world_size} ranks ({ranks}) on {gpu.name}, "
        f"{args.cluster}, network {args.network}, host {args.host}\n"
        "live: times are simulated; losses and other computed values are inventions [*]"
        + ("" if between is None else f"\nlive: {between}"),
        file=sys.stderr,
        flush=True,
    )


def _printer(who: Representation) -> Callable[[int, str], None]:
    """Prints a rank's lines, under its number where several run."""
    alone = len(who.simulated) == 1

    def show(rank: int, line: str) -> None:
        print(line if alone else f"[rank {rank}] {line}", flush=True)

    return show
