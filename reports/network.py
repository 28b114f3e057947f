"""What communication asks of a network, as tables: factors, utilisation, hot links."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.reports.wording import format_percent, format_seconds
from trainscout.simulators.predictor.network.topology import Network
from trainscout.simulators.predictor.network.topology.network import KINDS
from trainscout.simulators.predictor.replay.network_use import CommunicatorUse, NetworkUse

_HOT_LINKS = 4
_ENDS = {
    "nvlink": "GPU to NVLink",
    "pcie": "GPU to PCIe",
    "nic": "NIC to leaf",
    "leaf": "leaf to spine",
    "spine": "spine to core",
    "pod": "pod to pod",
}


def network_report(use: NetworkUse) -> RenderableType:
    """Congestion of every communicator that was played, and the links it kept busiest."""
    parts: list[RenderableType] = [_factors(use.communicators), Text()]
    played = [each for each in use.communicators if each.busy is not None]
    if played:
        parts += [
            _utilisation(use.network, played),
            Text(),
            _hot_table(use.network, played),
            Text(),
        ]
    return Group(*parts)


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right")
    return table


def _factors(uses: tuple[CommunicatorUse, ...]) -> Table:
    columns = ("of", "longest message", "as", "MB", "groups", "alone", "congested", "factor")
    table = _table("Congestion, all groups at once", *columns, left=3)
    for use in uses:
        table.add_row(
            use.communicator,
            use.operation,
            use.algorithm if use.busy is not None else "inside nodes",
            f"{use.bytes / 1e6:,.1f}",
            f"{use.groups:,} x {use.group.size:,}",
            format_seconds(use.alone_s),
            format_seconds(use.seconds),
            f"{use.factor:.2f}",
        )
    return table


def _utilisation(network: Network, uses: list[CommunicatorUse]) -> Table:
    kinds = [kind for kind in KINDS if any(_of_kind(network, use, kind).any() for use in uses)]
    columns = [_ENDS[kind] for kind in kinds]
    table = _table("Utilisation, mean / busiest", "of", *columns)
    for use in uses:
        cells = []
        for kind in kinds:
            busy = _of_kind(network, use, kind)
            cells.append(f"{format_percent(busy.mean())} / {format_percent(busy.max())}")
        table.add_row(use.communicator, *cells)
    return table


def _hot_table(network: Network, uses: list[CommunicatorUse]) -> Table:
    table = _table("Hot links", "of", "link", "Gb/s", "busy", left=2)
    for use in uses:
        for link, busy in hot_links(network, use):
            rate = network.rate_bytes_per_s[link] * 8 / 1e9
            name = network.link_name(link)
            table.add_row(use.communicator, name, f"{rate:,.0f}", format_percent(busy))
    return table


def hot_links(network: Network, use: CommunicatorUse) -> list[tuple[int, float]]:
    """The busiest links between nodes (or inside them, where nothing leaves), and how busy they
    are; ties by number, each NIC or switch port once."""
    assert use.busy is not None
    outside = network.first["nic"]
    busy = use.busy.copy()
    if busy[outside:].any():
        busy[:outside] = 0
    busiest = np.argsort(-busy, kind="stable")[:_HOT_LINKS]
    return [(int(link), float(busy[link])) for link in busiest if busy[link] > 0]


def _of_kind(network: Network, use: CommunicatorUse, kind: str) -> np.ndarray:
    assert use.busy is not None
    first = network.first[kind]
    return use.busy[first : first + 2 * network.count[kind]]


def network_record(use: NetworkUse) -> list[dict[str, Any]]:
    """The same as plain values, for JSON."""
    return [
        {
            "communicator": each.communicator,
            "operation": each.operation,
            "algorithm": each.algorithm,
            "bytes": each.bytes,
            "groups": each.groups,
            "ranks": each.group.size,
            "alone_s": each.alone_s,
            "seconds": each.seconds,
            "congestion_factor": each.factor,
            "hot_links": []
            if each.busy is None
            else [
                {"link": use.network.link_name(link), "busy": busy}
                for link, busy in hot_links(use.network, each)
            ],
        }
        for each in use.communicators
    ]
