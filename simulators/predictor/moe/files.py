"""The files the command can leave: routing data and communication log, whole or not at all."""

from __future__ import annotations

from typing import TextIO

import numpy as np

from trainscout.simulators.predictor.moe.communication import play
from trainscout.simulators.predictor.moe.dispatch import token_bounds
from trainscout.simulators.predictor.moe.experiment import Experiment, Layer, Routed
from trainscout.simulators.predictor.moe.mesh import Mesh


def write_routing_header(file: TextIO, experiment: Experiment) -> None:
    experts = ",".join(f"expert_{choice}" for choice in range(experiment.router.top_k))
    file.write(f"layer,token,source,{experts}\n")


def write_routing(file: TextIO, layer: int, routed: Routed) -> None:
    """One line a token: layer, position in the sequence, its node and its experts."""
    tokens, nodes = len(routed.chosen), len(routed.asked)
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
