"""``trainscout moe``: route tokens to experts and time the exchange."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from trainscout.simulators.predictor.io.command_line import OK
from trainscout.simulators.predictor.io.output import show_text, writing
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.moe.loads import token_bounds
from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.moe.router import Router
from trainscout.simulators.predictor.question.errors import InputError, nearest_name

from .communication import play
from .experiment import Experiment, Extent, Layer, Message, Routed, layers_of
from .mesh import Mesh


@dataclass(frozen=True)
class Files:
    """What is read and written beside the tables."""

    histogram: str | None = field(
        default=None, metadata={"meaning": "CSV of measured routings: [layer,] expert, tokens"}
    )
    routing_file: str | None = field(
        default=None, metadata={"meaning": "CSV to write: the experts of every token"}
    )
    log_file: str | None = field(
        default=None, metadata={"meaning": "CSV to write: who sent what in which rounds"}
    )


GROUPS: dict[str, type[Any]] = {
    "Routing": Router,
    "Message": Message,
    "Mesh": Mesh,
    "Extent": Extent,
    "Files": Files,
}


def parameters(group: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields of a group that can be given on the command line."""
    return [entry for entry in dataclasses.fields(group) if "meaning" in entry.metadata]


def parse(arguments: Sequence[str]) -> tuple[Experiment, Files]:
    """The checked experiment and the files of a command line.

    Raises:
        InputError: for an unknown, repeated, unreadable or impossible parameter.
    """
    settings = _split(arguments)
    router, message, mesh, extent, files = (
        _build(group, settings) for group in (Router, Message, Mesh, Extent, Files)
    )
    if files.histogram is not None:
        router = dataclasses.replace(router, measured=read_histograms(Path(files.histogram)))
    experiment = Experiment(router, message, mesh, extent)
    experiment.check()
    if extent.load_per_node is not None:
        _refuse_routing(settings)
    if files.routing_file is not None and files.routing_file == files.log_file:
        raise InputError("log_file", files.log_file, "is the routing_file too")
    return experiment, files


def _refuse_routing(settings: Mapping[str, str]) -> None:
    """An even load has no routing: say so instead of leaving a parameter without effect."""
    routing = [entry.name for group in (Router, Message) for entry in parameters(group)]
    for name in (*routing, "histogram", "routing_file"):
        if name in settings:
            raise InputError(
                name, settings[name], "has no effect: load_per_node replaces a routing"
            )


def _split(arguments: Sequence[str]) -> dict[str, str]:
    names = [entry.name for group in GROUPS.values() for entry in parameters(group)]
    settings: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in names:
            raise InputError(name, value, "is not a parameter", names, nearest_name(name, names))
        if not equals or not value:
            raise InputError(name, value, "has no value", f"{name}=VALUE")
        if name in settings:
            raise InputError(name, value, "is given twice")
        settings[name] = value
    return settings


def _build(group: type[Any], settings: Mapping[str, str]) -> Any:
    names = [entry.name for entry in parameters(group) if entry.name in settings]
    given = {name: None if settings[name] == "null" else settings[name] for name in names}
    return typed_value(group, "", given)


_HELP = """\
Route a sequence's tokens to experts that lie on nodes of one GPU each, all linked to each other,
and time the exchange in rounds of packets. Prints loads, rounds and communication time.

examples:
  # a quarter of 64 experts gets 60 % of all routings
  trainscout moe num_experts=64 top_k=6 hot_ratio=0.25 hot_weight=0.6
  # whole embeddings over 50 GB/s links in 4 KiB packets, 200 MB a round into and out of a node
  trainscout moe seqlen=262144 embed_dim=4096 intra_bw=50e6 packet_size=4096 \\
      packet_prep_delay=1e-6 base_delay=0.01 nic_rate=200e6
  # two clusters of four nodes, the links between them half as fast
  trainscout moe nodes_per_cluster=4 inter_bw=50
  # experts as popular as measured; keep what was routed and what was sent
  trainscout moe histogram=counts.csv routing_file=routing.csv log_file=log.csv
  # an even load, no routing: 256 ms
  trainscout moe load_per_node=11200

usage: trainscout moe name=value ...
"""


def help_text() -> str:
    lines = [_HELP]
    for title, group in GROUPS.items():
        lines.append(f"{title}:")
        for each in parameters(group):
            default = "" if each.default is None else f" ({each.default:g})"
            lines.append(f"  {each.name + '=':28}{each.metadata['meaning']}{default}")
        lines.append("")
    lines.append("exit codes: 0 done; 1 an internal failure; 2 wrong input; 130 interrupted\n")
    return "\n".join(lines)


def run(experiment: Experiment, files: Files) -> None:
    """Print the tables of a checked experiment and write the files asked for."""
    # rich takes a tenth of a second to load.
    from trainscout.simulators.predictor.io.terminal import show

    from .terminal_tables import load_tables, times_of, times_table

    times = []
    for layer in _written(experiment, files):
        if layer.number == 0:
            first = load_tables(layer)
        times.append(times_of(layer))
    show(first)
    show_text("\n")
    show(times_table(experiment, times))
    for path in (files.routing_file, files.log_file):
        if path is not None:
            show_text(f"Written: {path}\n")


def _written(experiment: Experiment, files: Files) -> Iterator[Layer]:
    """Each layer, after its lines have gone to the files."""
    with ExitStack() as stack:
        routing = log = None
        if files.routing_file is not None:
            routing = stack.enter_context(writing("routing_file", Path(files.routing_file)))
            write_routing_header(routing, experiment)
        if files.log_file is not None:
            log = stack.enter_context(writing("log_file", Path(files.log_file)))
            log.write(LOG_HEADER)
        for layer in layers_of(experiment):
            if routing is not None and layer.routed is not None:
                write_routing(routing, layer.number, layer.routed)
            if log is not None:
                write_log(log, layer, experiment.mesh)
            yield layer


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    if {"--help", "-h"} & set(arguments):
        show_text(help_text())
    else:
        run(*parse([argument for argument in arguments if argument != "--debug"]))
    return OK


def write_routing_header(file: TextIO, experiment: Experiment) -> None:
    experts = ",".join(f"expert_{choice}" for choice in range(experiment.router.top_k))
    file.write(f"layer,token,source,{experts}\n")


def write_routing(file: TextIO, layer: int, routed: Routed) -> None:
    """One line a token: layer, position in the sequence, its node and its experts."""
    tokens, nodes = len(routed.chosen), len(routed.requested)
    sources = np.repeat(np.arange(nodes), np.diff(token_bounds(tokens, nodes)))
    columns = (np.full(tokens, layer), np.arange(tokens), sources, routed.chosen)
    np.savetxt(file, np.column_stack(columns), fmt="%d", delimiter=",")


LOG_HEADER = "layer,first_round,last_round,source,destination,packets_per_round,bytes\n"


def write_log(file: TextIO, layer: Layer, mesh: Mesh) -> None:
    """One line a sending pair and run of equal rounds.

    Rounds count from 0 in each layer; ``bytes`` are of all the rounds of the line. The last
    packet of a pair may not be full.
    """
    delivered = np.zeros_like(layer.load_bytes)
    for run in play(layer.load_bytes, mesh):
        sent = run.packets * run.rounds * mesh.packet_size
        sent = np.minimum(sent, layer.load_bytes - delivered)
        delivered += np.where(run.packets > 0, sent, 0)
        for source, to in np.argwhere(run.packets):
            file.write(
                f"{layer.number},{run.first},{run.first + run.rounds - 1},{source},{to},"
                f"{run.packets[source, to]},{sent[source, to]}\n"
            )
