"""Loads, rounds and times as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.moe.router import Counts

from .experiment import Experiment, Layer

_MOST_ROWS = 16
_MOST_DISPATCH = 12
_MOST_LAYERS = 64


@dataclass(frozen=True)
class LayerTimes:
    """What the table of times needs of a layer."""

    number: int
    imbalance: float
    rounds: int
    time_ms: float
    least_time_ms: float
    even_time_ms: float | None
    back_ms: float | None


def times_of(layer: Layer) -> LayerTimes:
    exchange = layer.communication
    received = layer.load_bytes.sum(axis=0)
    mean = received.mean()
    return LayerTimes(
        layer.number,
        float(received.max() / mean) if mean else 1.0,
        exchange.rounds,
        exchange.time_ms,
        exchange.least_time_ms,
        layer.even_time_ms,
        None if layer.back is None else layer.back.time_ms,
    )


def load_tables(layer: Layer) -> RenderableType:
    """Routings by expert, and bytes by node, of one layer."""
    parts: list[RenderableType] = []
    if layer.routed is not None:
        requested, kept = layer.routed.requested.sum(axis=0), layer.routed.kept.sum(axis=0)
        parts += [_experts_table(layer.number, requested, kept), Text()]
    parts.append(_nodes_table(layer.number, layer.load_bytes))
    if len(layer.load_bytes) <= _MOST_DISPATCH:
        parts += [Text(), _dispatch_table(layer.number, layer.load_bytes)]
    return Group(*parts)


def _experts_table(layer: int, requested: Counts, kept: Counts) -> Table:
    title = f"Routings by expert, layer {layer}{_of_how_many(requested)}"
    table = _table(title, "expert", "routings", "share %", "x mean", "dropped")
    total, mean, dropped = requested.sum(), requested.mean(), requested - kept
    for expert in _busiest(requested):
        count = requested[expert]
        share, relative = f"{100 * count / total:.1f}", f"{count / mean:.2f}"
        table.add_row(str(expert), f"{count:,}", share, relative, f"{dropped[expert]:,}")
    table.add_row("all", f"{total:,}", "100.0", "", f"{dropped.sum():,}")
    return table


def _nodes_table(layer: int, load_bytes: Counts) -> Table:
    keeps, for_experts = np.diag(load_bytes), load_bytes.sum(axis=0)
    title = f"Bytes by node, layer {layer}{_of_how_many(for_experts)}"
    table = _table(title, "node", "sends", "receives", "keeps", "for its experts, x mean")
    sends, receives = load_bytes.sum(axis=1) - keeps, for_experts - keeps
    mean = for_experts.mean() or 1.0
    for node in _busiest(for_experts):
        row = (f"{part[node]:,}" for part in (sends, receives, keeps))
        table.add_row(str(node), *row, f"{for_experts[node] / mean:.2f}")
    table.add_row("all", *(f"{part.sum():,}" for part in (sends, receives, keeps)), "")
    return table


def _dispatch_table(layer: int, load_bytes: Counts) -> Table:
    unit, size = _unit(int(load_bytes.max()))
    nodes = (f"to {node}" for node in range(len(load_bytes)))
    table = _table(f"{unit} from node to node, layer {layer}", "from", *nodes)
    for node, row in enumerate(load_bytes):
        table.add_row(str(node), *(f"{amount / size:,.0f}" for amount in row))
    return table


def _unit(largest_bytes: int) -> tuple[str, int]:
    """The unit in which the largest entry has at most six figures."""
    for unit, size in (("Bytes", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9)):
        if largest_bytes < 10**6 * size:
            return unit, size
    return "TB", 10**12


def _busiest(loads: Counts) -> Counts:
    """Those that a table shows, in their own order."""
    return np.sort(np.argsort(-loads, kind="stable")[:_MOST_ROWS])


def _of_how_many(loads: Counts) -> str:
    return f" (the {_MOST_ROWS} busiest of {len(loads)})" if len(loads) > _MOST_ROWS else ""


def times_table(experiment: Experiment, layers: Sequence[LayerTimes]) -> RenderableType:
    """Rounds and milliseconds of each layer, and of all with the initial CPU delay."""
    cpu_ms, round_ms = experiment.mesh.initial_cpu_delay, experiment.mesh.round_time_ms()
    columns = ["busiest node, x mean", "rounds", "ms", "at least, ms", "spread evenly, ms"]
    back = [layer.back_ms for layer in layers if layer.back_ms is not None]
    title = f"Communication in rounds of {_ms(round_ms)} ms"
    if len(layers) > _MOST_LAYERS:
        title += f" (the first {_MOST_LAYERS} layers of {len(layers)})"
    table = _table(title, "layer", *columns, *(["back, ms"] if back else []))
    for layer in layers[:_MOST_LAYERS]:
        times = [layer.time_ms, layer.least_time_ms, layer.even_time_ms]
        if layer.back_ms is not None:
            times.append(layer.back_ms)
        words = ("-" if time is None else _ms(time) for time in times)
        table.add_row(str(layer.number), f"{layer.imbalance:.2f}", f"{layer.rounds:,}", *words)
    rounds, time_ms = sum(x.rounds for x in layers), sum(x.time_ms for x in layers)
    mean = np.mean([layer.imbalance for layer in layers])
    least = _ms(sum(layer.least_time_ms for layer in layers))
    even = [layer.even_time_ms for layer in layers if layer.even_time_ms is not None]
    evenly = _ms(sum(even)) if even else "-"
    sums = [_ms(time_ms), least, evenly, *([_ms(sum(back))] if back else [])]
    table.add_row("all", f"{mean:.2f}", f"{rounds:,}", *sums)
    once = f", {_ms(cpu_ms)} ms of them once at the start" if cpu_ms else ""
    total = f"Communication time: {_ms(cpu_ms + time_ms + sum(back))} ms{once}"
    return Group(table, Text(), Text(total))


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if 1e6 <= milliseconds < 1e15 else f"{milliseconds:,.6g}"


def _table(title: str, *columns: str) -> Table:
    return plain_table(*(f"#{each}" for each in columns), title=title, title_style="bold")
