"""Links of whole switches, which wear, fail and are drained with all their cables."""

from __future__ import annotations

import re

import numpy as np

from trainscout.simulators.predictor.question.errors import InputError

from .network import Ints, Network
from .routing import leaf_of

_SWITCH = re.compile(r"(leaf|spine|core)(\d+)")


def links_named(network: Network, name: str) -> Ints:
    """Both directions of a cable (``leaf0-spine3``), or of every cable of a switch (``spine3``).

    Raises:
        InputError: when the network has no such cable or switch.
    """
    match = _SWITCH.fullmatch(name)
    if match is None:
        return np.array(network.links_named(name))
    kind, number = match[1], int(match[2])
    counts = {
        "leaf": network.planes * network.leaves,
        "spine": network.planes * network.pods * network.spines,
        "core": network.planes * network.spines * network.cores if network.count["spine"] else 0,
    }
    if number >= counts[kind]:
        allowed = f"{kind}0 to {kind}{counts[kind] - 1}" if counts[kind] else "no such switch here"
        raise InputError(f"topology.link_health.{name}", name, "is not in this cluster", allowed)
    cables = {"leaf": _leaf_cables, "spine": _spine_cables, "core": _core_cables}[kind]
    found = cables(network, number)
    return np.concatenate(
        [network.up(kind) + at for kind, at in found]
        + [network.down(kind) + at for kind, at in found]
    )


def _leaf_cables(network: Network, leaf: int) -> list[tuple[str, Ints]]:
    plane, own = divmod(leaf, network.leaves)
    nics = np.arange(network.count["nic"] // network.planes)
    plugged = nics[leaf_of(network, nics) == own] * network.planes + plane
    return [("nic", plugged), ("leaf", leaf * network.spines + np.arange(network.spines))]


def _spine_cables(network: Network, spine: int) -> list[tuple[str, Ints]]:
    pod, place = divmod(spine, network.spines)
    plane, own = divmod(pod, network.pods)
    leaves = np.arange(network.leaves)
    leaves = plane * network.leaves + leaves[leaves // network.leaves_per_pod == own]
    below = ("leaf", leaves * network.spines + place)
    if not network.cables:
        return [below, ("spine", spine * network.cores + np.arange(network.cores))]
    others = [each for each in range(network.pods) if each != own]
    other, nth = (each.ravel() for each in np.meshgrid(others, np.arange(network.cables)))
    other = plane * network.pods + other
    mine = network.cable_spine(pod, other, nth) == place
    first, second = network.up("pod"), network.down("pod")
    cables = network.cable(pod, other[mine], nth[mine])
    return [below, ("pod", np.where(cables < second, cables - first, cables - second))]


def _core_cables(network: Network, core: int) -> list[tuple[str, Ints]]:
    group, place = divmod(core, network.cores)
    plane, own = divmod(group, network.spines)
    pods = plane * network.pods + np.arange(network.pods)
    return [("spine", (pods * network.spines + own) * network.cores + place)]
