"""What communication asks of a network, as tables: factors, utilisation, hot links."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.reports.wording import format_percent, format_seconds
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.network.topology.network import KINDS, Network
from trainscout.simulators.predictor.replay.network_use import CommunicatorUse, NetworkUse
from trainscout.simulators.predictor.replay.whole_step import MOST_TASKS, WholeStep

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


def _factors(uses: tuple[CommunicatorUse, ...]) -> Table:
    figures = ("#MB", "#groups", "#alone", "#congested", "#factor")
    title = "Congestion, all groups at once"
    table = plain_table("of", "longest message", "as", *figures, title=title)
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
    columns = (f"#{_ENDS[kind]}" for kind in kinds)
    table = plain_table("of", *columns, title="Utilisation, mean / busiest")
    for use in uses:
        cells = []
        for kind in kinds:
            busy = _of_kind(network, use, kind)
            cells.append(f"{format_percent(busy.mean())} / {format_percent(busy.max())}")
        table.add_row(use.communicator, *cells)
    return table


def _hot_table(network: Network, uses: list[CommunicatorUse]) -> Table:
    table = plain_table("of", "link", "#Gb/s", "#busy", title="Hot links")
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
    plain = ("communicator", "operation", "algorithm", "bytes", "groups", "alone_s", "seconds")
    return [
        {
            **{name: getattr(each, name) for name in plain},
            "ranks": each.group.size,
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


def whole_step_report(of: WholeStep | None) -> RenderableType:
    """What it costs the step that all of its communication meets on one network (None: it was too
    large to play)."""
    if of is None:
        return Text(f"The whole step was not played: more than {MOST_TASKS:,} tasks.\n")
    title = "The whole step, rank by rank"
    table = plain_table("of its communication", "#step", "#beyond", title=title)
    rows = (
        ("nothing shares a link", of.alone_s, None),
        ("each dimension on a network of its own", of.apart_s, of.alone_s),
        ("all of it on one network", of.together_s, of.apart_s),
        ("predicted: each dimension's slowest group for all", of.priced_s, of.alone_s),
    )
    for words, seconds, than_s in rows:
        beyond = "" if than_s is None else f"{seconds / than_s - 1:+.2%}"
        table.add_row(words, format_seconds(seconds), beyond)
    for each in of.slowdowns:
        slowed = each.together_s / each.alone_s if each.alone_s else 1.0
        words = f"  {each.messages:,} messages of {each.communicator}, begin to end"
        table.add_row(words, format_seconds(each.together_s), f"{slowed:.2f} x alone")
    return Group(table, Text(f" {format_whole_step(of)}"), Text())


def format_whole_step(of: WholeStep) -> str:
    """How much of the step was played, and at what cost, in one line."""
    if of.reached < 1:
        return (
            f"The budget (network.budget_s) ended after {format_percent(of.reached)} of the step: "
            "what was late by then is counted, at least so much it is."
        )
    micro_batches = f"{of.played_micro_batches} of {of.micro_batches} micro-batches"
    return f"Played {micro_batches}, {of.flows:,} flows, in {of.cpu_s:.1f} CPU s."


def whole_step_record(of: WholeStep | None) -> dict[str, Any] | None:
    """The same as plain values, for JSON."""
    if of is None:
        return None
    figures = ("alone_s", "priced_s", "apart_s", "together_s")
    played = ("micro_batches", "played_micro_batches", "reached", "flows")
    return {
        **{name: getattr(of, name) for name in (*figures, *played)},
        "communicators": [asdict(each) for each in of.slowdowns],
    }
