"""A comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.reports.profile.figures import Line, class_lines, introduction, sentence
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.kernels.observed import ObservedClass
from trainscout.simulators.virtual_cluster.profiles.comparison import Comparison
from trainscout.simulators.virtual_cluster.profiles.rows import MEMORY_BOUND, OperationRow
from trainscout.simulators.virtual_cluster.traces.command_tables import milliseconds

MOST_OPERATIONS = 12
_PASSES = {"forward": " fwd", "backward": " bwd"}


def profile_report(
    found: Sequence[Comparison], observed: dict[str, ObservedClass], *, everything: bool
) -> RenderableType:
    """The first rank's classes and operations, the others' in a line each, communication."""
    first = found[0]
    parts: list[RenderableType] = [Text(line) for line in introduction(first)]
    parts += [
        Text(sentence(first, observed)),
        Text(),
        Text("A step by class: measured, predicted, and the measured shapes priced on their own"),
        class_table(class_lines(first, observed)),
        Text(),
        Text("A step by operation, ms"),
        operation_table(first.operations, everything=everything),
    ]
    if not everything and len(first.operations) > MOST_OPERATIONS:
        left = len(first.operations) - MOST_OPERATIONS
        parts.append(Text(f"and {left} more (verbosity=verbose)"))
    if first.collectives:
        waits = "" if len(found) > 1 else "; the wait for other ranks is in the measured time"
        parts += [Text(), Text(f"Communication{waits}"), collective_table(first)]
    if len(found) > 1:
        parts += [Text(), Text("Ranks"), rank_table(found)]
    return Group(*parts)


def class_table(lines: Sequence[Line]) -> Table:
    table = plain_table("class", "#measured", "#predicted", "#error", "#same shapes")
    for line in lines:
        table.add_row(
            line.name,
            milliseconds(line.measured_s),
            "" if line.predicted_s is None else milliseconds(line.predicted_s),
            _percent(line.error),
            _percent(line.alone),
        )
    return table


def operation_table(rows: Sequence[OperationRow], *, everything: bool) -> Table:
    """Those that differ most, in launch order; all of them if ``everything``."""
    largest = sorted(rows, key=lambda row: -abs(row.predicted_s - row.measured_s))
    kept = set(map(id, rows if everything else largest[:MOST_OPERATIONS]))
    figures = ("#calls", "#pred.", "#measured", "#predicted", "#error")
    table = plain_table("block", "operation", "shape", *figures)
    for row in rows:
        if id(row) in kept:
            table.add_row(
                *operation_name(row),
                row.shape,
                f"{row.measured_calls:g}",
                f"{row.predicted_calls:g}",
                f"{row.measured_s * 1e3:.3f}",
                f"{row.predicted_s * 1e3:.3f}",
                _percent(row.predicted_s / row.measured_s - 1 if row.measured_s else None),
            )
    return table


def operation_name(row: OperationRow) -> tuple[str, str]:
    """Block and operation, the pass said once: names of products end with it."""
    block = row.block.removesuffix(f"_{row.pass_}")
    memory = f"memory-bound{_PASSES.get(row.pass_, '')}"
    return block, memory if row.name == MEMORY_BOUND else row.name


def collective_table(found: Comparison) -> Table:
    figures = ("#ranks", "#calls", "#pred.", "#measured", "#predicted")
    table = plain_table("kind", "group", *figures)
    for row in found.collectives:
        table.add_row(
            row.kind,
            row.group,
            str(row.group_size or ""),
            f"{row.measured_calls:g}",
            f"{row.predicted_calls:g}",
            f"{milliseconds(row.measured_s)}, {row.measured_bytes / 2**20:.1f} MiB",
            f"{milliseconds(row.predicted_s)}, {row.predicted_bytes / 2**20:.1f} MiB",
        )
    return table


def rank_table(found: Sequence[Comparison]) -> Table:
    seconds = ("#step", "#computing", "#communicating", "#exposed", "#host gaps")
    table = plain_table("#rank", "#stage", *seconds)
    for each in found:
        busy = each.profile.occupancy
        parts_s = (busy.computing_s, busy.communicating_s, busy.exposed_s, busy.host_gap_s)
        place = (str(each.rank), str(each.stage))
        table.add_row(*place, *map(milliseconds, (each.profile.step_s, *parts_s)))
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"
