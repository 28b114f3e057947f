"""``trainscout live``: an unmodified script on a simulated cluster's clock."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.command_line import command_parser
from trainscout.simulators.predictor.io.output import check_output, make_folder
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
    require_whole,
)
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.emulation.launcher import script_fields
from trainscout.simulators.virtual_cluster.emulation.rank_process import RankOptions
from trainscout.simulators.virtual_cluster.emulation.virtual_rank import check_platform
from trainscout.simulators.virtual_cluster.traces.collate.probe import parse_ranks

from .rank_process import LiveOptions
from .representation import Representation

if TYPE_CHECKING:
    from .network import Network
    from .prices import Prices

NETWORKS = ("whitebox", "flow")
HOSTS = ("cpu", "declared")


def main(arguments: Sequence[str]) -> int:
    """Run the ranks live; the exit code."""
    args = command_parser("live").parse_args(arguments)
    check_platform()
    # A shell that starts commands in the background has them ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Asked to end, it ends its ranks first.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    _check(args)
    script = script_fields(args)
    catalogue = load_catalogue()
    if args.cluster is None:
        args.cluster = _usual_cluster(args.world_size, catalogue.gpus.get(args.gpu))
    cluster, gpu = catalogue.machines(args.cluster, args.gpu, prefix="--")
    framework = UNDECLARED
    if args.framework is not None:
        framework = catalogue.frameworks.chosen("--framework", args.framework)
    who = Representation.by_neighbours(args.world_size, _ranks(args))
    options = _options(args, script, who, (cluster, gpu), framework)

    # These load numba and what prices are made of.
    from trainscout.simulators.predictor.replay.network_doubt import stated_share
    from trainscout.simulators.virtual_cluster.execution.step import used_part
    from trainscout.simulators.virtual_cluster.walk.launches import Launches

    from .rank_process import start_ranks
    from .report import show_report, write_timeline
    from .server import LiveError, LiveServer
    from .simulation import Simulation

    cluster = used_part(cluster, args.world_size)
    prices, network = _network(args, (cluster, gpu), framework, who)
    simulation = Simulation(
        who, prices, network, options.cost, Launches, record=args.perfetto is not None
    )
    _banner(args, gpu, who, stated_share(cluster, switches=args.network == "flow"))
    server = LiveServer(
        simulation,
        lambda address: start_ranks(replace(options, address=address)),
        cores=args.cores or len(os.sched_getaffinity(0)),
        timeout_s=args.timeout,
        show=_printer(who),
    )
    try:
        measured = server.run()
    except LiveError as error:
        print(f"live: {error}", file=sys.stderr)
        return error.code
    show_report(simulation, measured)
    if args.perfetto is not None:
        write_timeline("--perfetto", args.perfetto, simulation)
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
    from trainscout.simulators.virtual_cluster.walk.launches import HostCost

    cluster, gpu = machine
    cost = HostCost.of(framework, cpu=args.host == "cpu")
    job = RankOptions(
        world_size=args.world_size,
        rank=who.simulated[0],
        local_world_size=min(cluster.gpus_per_node, args.world_size),
        gpu=gpu.name,
        **script,
    )
    return LiveOptions("", job, who.simulated, cost, args.traces, args.preload)


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
    if args.cores is not None:
        require_positive("--cores", args.cores)
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
