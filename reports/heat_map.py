"""How busy every link is, as a picture: one SVG file, no script, no other file."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import numpy as np

from trainscout.simulators.predictor.network.topology import Network
from trainscout.simulators.predictor.replay.network_use import CommunicatorUse, NetworkUse

_CELL, _GAP, _TITLE, _LABEL = 9, 26, 18, 64
# A picture of more rows can no longer be read; the busiest ones are kept.
_MOST_ROWS = 96
_MOST_COLUMNS = 128
SVG = "http://www.w3.org/2000/svg"
# Kinds of links, drawn below each other.
_DRAWN = ("nic", "leaf", "spine", "pod")


def heat_map(use: NetworkUse) -> str:
    """An SVG picture: for each communicator the NICs, and the links of each tier, in both
    directions; a cell's colour is how busy it is, its tooltip the link's name."""
    root = Xml.Element("svg", xmlns=SVG)
    root.set("font-family", "sans-serif")
    root.set("font-size", "11")
    root.set("style", "background: #ffffff")
    top, width = _GAP, 400
    for each in use.communicators:
        if each.busy is None:
            continue
        title = f"{each.communicator}: {each.operation}, {each.factor:.2f} times as long as alone"
        write_text(root, 8, top, title, bold=True)
        top += _TITLE
        for kind in _DRAWN:
            left, deepest = 8, 0
            for direction in ("up", "down"):
                right, bottom = _draw(root, use.network, each, kind, direction, left, top)
                left, deepest = right + _GAP, max(deepest, bottom)
            width = max(width, left)
            top = deepest + _GAP if deepest else top
    root.set("width", str(width))
    root.set("height", str(top))
    root.set("viewBox", f"0 0 {width} {top}")
    return Xml.tostring(root, encoding="unicode") + "\n"


def _draw(
    root: Xml.Element,
    network: Network,
    use: CommunicatorUse,
    kind: str,
    direction: str,
    left: int,
    top: int,
) -> tuple[int, int]:
    """Draw one kind's links in one direction; returns right and bottom edge (0: nothing drawn)."""
    ports = network.nics_per_node * network.planes
    across = {"nic": ports, "leaf": network.spines, "spine": network.cores, "pod": network.cables}[
        kind
    ]
    assert use.busy is not None
    first = network.up(kind) if direction == "up" else network.down(kind)
    busy = use.busy[first : first + network.count[kind]]
    if not across or not busy.any():
        return left, 0
    table = busy.reshape(-1, across)
    rows = np.sort(np.argsort(-table.max(axis=1), kind="stable")[:_MOST_ROWS])
    columns = np.sort(np.argsort(-table.max(axis=0), kind="stable")[:_MOST_COLUMNS])
    write_text(root, left, top + 8, f"{kind} links {direction}")
    top += _TITLE
    for line, row in enumerate(rows.tolist()):
        name = network.link_name(first + row * across)
        name = name.rsplit("-", 1)[0] if kind == "pod" else name.split("-")[0]
        write_text(root, left, top + line * _CELL + 8, name, small=True)
        for place, column in enumerate(columns.tolist()):
            link = first + row * across + column
            share = float(table[row, column])
            cell = Xml.SubElement(root, "rect", fill=colour(share, bool(network.alive[link])))
            cell.set("x", str(left + _LABEL + place * _CELL))
            cell.set("y", str(top + line * _CELL))
            cell.set("width", str(_CELL - 1))
            cell.set("height", str(_CELL - 1))
            words = f"{share:.0%} busy" if network.alive[link] else "failed"
            Xml.SubElement(cell, "title").text = f"{network.link_name(link)}: {words}"
    return left + _LABEL + len(columns) * _CELL, top + len(rows) * _CELL


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
