"""A fabric drawn tier by tier, its cables coloured by how busy a recipe keeps them: one SVG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

import numpy as np

from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import leaf_of
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.network_use import NetworkUse

SVG = "http://www.w3.org/2000/svg"
Ints = np.ndarray
Floats = np.ndarray

# More of a tier can no longer be distinguished; the busiest are drawn.
_MOST = 64
_WIDTH, _MARGIN, _TIER, _BOX = 1400, 90, 190, 14
_LEGEND = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class _Cables:
    """Cables between two tiers, shape (n,) each: numbers of their ends, and of the upward and the
    downward link."""

    below: Ints
    above: Ints
    up: Ints
    down: Ints


def fabric_picture(use: NetworkUse, job: Job, fabric: str) -> str:
    """An SVG picture of the named fabric under a job: nodes, leaves, spines, cores; a cable's
    colour is how busy the busiest of its directions is while the communicator that uses it most
    communicates, its tooltip says what each communicator makes of it."""
    network = use.network
    busy = _busiest(use)
    tiers = _tiers(network)
    chosen = _chosen(network, tiers, busy)
    root = Xml.Element("svg", xmlns=SVG, width=str(_WIDTH), viewBox="")
    root.set("font-family", "sans-serif")
    root.set("font-size", "12")
    root.set("style", "background: #ffffff")
    write_text(root, 12, 22, picture_title(job, fabric), bold=True)
    _legend(root)
    names = list(chosen)
    place = {name: _MARGIN + (len(names) - 1 - at) * _TIER for at, name in enumerate(names)}
    lines = Xml.SubElement(root, "g")
    for below, above, cables in tiers:
        for nth in _drawn(cables, chosen[below], chosen[above], busy):
            ends = (
                *_point(chosen[below], int(cables.below[nth]), place[below]),
                *_point(chosen[above], int(cables.above[nth]), place[above]),
            )
            _cable(lines, ends, use, busy, int(cables.up[nth]), int(cables.down[nth]))
    for name, shown in chosen.items():
        _switches(root, name, shown, _size(network, name), place[name])
    height = place[names[0]] + 60
    root.set("height", str(height))
    root.set("viewBox", f"0 0 {_WIDTH} {height}")
    return Xml.tostring(root, encoding="unicode") + "\n"


def picture_title(job: Job, fabric: str) -> str:
    return f"{job.cluster.name}, {job.world_size:,} GPUs, {fabric}: {job.model.name}"


def _busiest(use: NetworkUse) -> Floats:
    """The most that any communicator makes of each link, shape (links,)."""
    busy = np.zeros(use.network.num_links)
    for each in use.communicators:
        if each.busy is not None:
            busy = np.maximum(busy, each.busy)
    return busy


def _size(network: Network, tier: str) -> int:
    spines = network.pods * network.spines * network.planes
    return {
        "node": network.gpus // network.gpus_per_node,
        "leaf": network.leaves * network.planes,
        "spine": spines,
        "core": network.spines * network.cores * network.planes,
    }[tier]


def _tiers(network: Network) -> list[tuple[str, str, _Cables]]:
    """Cables between tiers, from below; those between pods join spines with spines."""
    port = np.arange(network.count["nic"])
    nic, plane = np.divmod(port, network.planes)
    leaf = plane * network.leaves + leaf_of(network, nic)
    found = [("node", "leaf", _between(network, "nic", nic // network.nics_per_node, leaf))]
    if network.count["leaf"]:
        leaf, spine = np.divmod(np.arange(network.count["leaf"]), network.spines)
        above = network.pod(leaf) * network.spines + spine
        found.append(("leaf", "spine", _between(network, "leaf", leaf, above)))
    if network.count["spine"]:
        spine, core = np.divmod(np.arange(network.count["spine"]), network.cores)
        plane = spine // (network.pods * network.spines)
        group = plane * network.spines + spine % network.spines
        found.append(
            ("spine", "core", _between(network, "spine", spine, group * network.cores + core))
        )
    if network.count["pod"]:
        one, other = np.triu_indices(network.pods, 1)
        first = np.arange(network.planes)[:, None] * network.pods
        pods = [np.repeat((first + each).ravel(), network.cables) for each in (one, other)]
        nth = np.tile(np.arange(network.cables), len(one) * network.planes)
        ends = [
            own * network.spines + network.cable_spine(own, to, nth)
            for own, to in (pods, reversed(pods))
        ]
        found.append(("spine", "spine", _between(network, "pod", *ends)))
    return found


def _between(network: Network, kind: str, below: Ints, above: Ints) -> _Cables:
    at = np.arange(network.count[kind])
    return _Cables(below, above, network.up(kind) + at, network.down(kind) + at)


def _chosen(
    network: Network, tiers: list[tuple[str, str, _Cables]], busy: Floats
) -> dict[str, Ints]:
    """Which of each tier are drawn, from below, in order."""
    chosen: dict[str, Ints] = {}
    for below, above, cables in tiers:
        load = np.maximum(busy[cables.up], busy[cables.down])
        for name, ends in ((below, cables.below), (above, cables.above)):
            if name not in chosen:
                most = np.zeros(_size(network, name))
                np.maximum.at(most, ends, load)
                chosen[name] = np.sort(np.argsort(-most, kind="stable")[:_MOST])
    return chosen


def _drawn(cables: _Cables, below: Ints, above: Ints, busy: Floats) -> Iterator[int]:
    """Cables whose ends are both drawn, the idle ones first, so that busy ones are on top."""
    there = np.isin(cables.below, below) & np.isin(cables.above, above)
    numbers = np.flatnonzero(there)
    load = np.maximum(busy[cables.up[numbers]], busy[cables.down[numbers]])
    yield from (int(each) for each in numbers[np.argsort(load, kind="stable")])


def _point(shown: Ints, number: int, top: int) -> tuple[float, int]:
    at = int(np.searchsorted(shown, number))
    return _MARGIN + (at + 0.5) * (_WIDTH - 2 * _MARGIN) / len(shown), top


def _cable(
    parent: Xml.Element,
    ends: tuple[float, int, float, int],
    use: NetworkUse,
    busy: Floats,
    up: int,
    down: int,
) -> None:
    x1, y1, x2, y2 = ends
    share = float(max(busy[up], busy[down]))
    alive = bool(use.network.alive[up])
    # Between switches of one tier over their heads.
    rise = 30 + abs(x2 - x1) / 8 if y1 == y2 else 0
    path = f"M{x1:.1f} {y1} Q{(x1 + x2) / 2:.1f} {(y1 + y2) / 2 - 2 * rise:.0f} {x2:.1f} {y2}"
    line = Xml.SubElement(parent, "path", d=path, fill="none")
    line.set("stroke", colour(share, alive) if share or not alive else "#d8d8d8")
    line.set("stroke-width", "1.6" if share else "0.6")
    if not alive:
        line.set("stroke-dasharray", "4 3")
    words = [
        f"{each.communicator} {max(each.busy[up], each.busy[down]):.0%}"
        for each in use.communicators
        if each.busy is not None
    ]
    rate = use.network.rate_bytes_per_s[up] * 8 / 1e9
    name = use.network.link_name(up).removesuffix(":up")
    state = ", ".join(words) if alive else "failed"
    Xml.SubElement(line, "title").text = f"{name} ({rate:,.0f} Gb/s): {state}"


def _switches(root: Xml.Element, name: str, shown: Ints, size: int, top: int) -> None:
    several = {"leaf": "leaves"}.get(name, f"{name}s")
    write_text(root, 12, top + 4, f"{size:,} {name if size == 1 else several}", bold=True)
    if size > len(shown):
        write_text(root, 12, top + 20, f"{len(shown)} drawn", small=True)
    for number in shown.tolist():
        x, _ = _point(shown, number, top)
        box = Xml.SubElement(root, "rect", fill="#33475b", rx="2")
        box.set("x", f"{x - _BOX / 2:.1f}")
        box.set("y", str(top - _BOX // 2))
        box.set("width", str(_BOX))
        box.set("height", str(_BOX))
        Xml.SubElement(box, "title").text = f"{name}{number}"


def _legend(root: Xml.Element) -> None:
    write_text(root, _WIDTH - 330, 22, "busy")
    for at, share in enumerate(_LEGEND):
        x = _WIDTH - 290 + 52 * at
        Xml.SubElement(
            root, "rect", x=str(x), y="12", width="14", height="12", fill=colour(share, alive=True)
        ).set("stroke", "#999999")
        write_text(root, x + 18, 22, f"{share:.0%}", small=True)


def colour(share: float, alive: bool) -> str:
    """White for idle over yellow to dark red for busy all the time; black for failed."""
    if not alive:
        return "#000000"
    share = min(1.0, max(0.0, share))
    red = round(255 - 100 * max(0.0, share - 0.5) * 2)
    green = round(245 * (1 - share) + 10)
    blue = round(235 * (1 - min(1.0, 2 * share)))
    return f"#{red:02x}{green:02x}{blue:02x}"


def write_text(
    root: Xml.Element, x: int, y: int, words: str, *, bold: bool = False, small: bool = False
) -> None:
    text = Xml.SubElement(root, "text", x=str(x), y=str(y))
    if bold:
        text.set("font-weight", "bold")
    if small:
        text.set("font-size", "8")
    text.text = words
