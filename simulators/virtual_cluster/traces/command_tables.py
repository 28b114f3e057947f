"""What the commands of this room print, as tables for a terminal, and what a trace amounts to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rich.console import RenderableType
from rich.table import Table

from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.io.terminal import as_text, plain_table

from . import events
from .collate.collated import Collated
from .collate.communication import ranks_text
from .collate.placement import Family
from .fused import Held
from .vocabulary import tensor_bytes, tensors

if TYPE_CHECKING:
    from .comparison import Busy, ClassComparison, ClassTime
    from .kineto import KinetoTrace

Key = TypeVar("Key")


@dataclass
class PhaseSummary:
    """One phase of one step. ``peak_bytes``: the most that storages held while it ran."""

    operations: int = 0
    touched_bytes: int = 0
    communications: int = 0
    communicated_bytes: int = 0
    host_cpu_s: float = 0.0
    peak_bytes: int = 0


@dataclass
class LaunchSummary:
    """Launches that share a name: how many, and the bytes of the tensors or buffers they take."""

    launches: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class TraceSummary:
    """What a trace holds, counted.

    ``phases`` by (phase, step), in order; ``operations`` by name and ``communications`` by (kind,
    communicator's description, its size), most bytes first; ``reads`` of device values by grade.
    """

    phases: dict[tuple[str, int], PhaseSummary]
    operations: dict[str, LaunchSummary]
    communications: dict[tuple[str, str, int], LaunchSummary]
    reads: dict[str, int]
    violations: tuple[str, ...]


def summarise(trace: events.Trace) -> TraceSummary:
    """Count a trace."""
    phases: dict[tuple[str, int], PhaseSummary] = defaultdict(PhaseSummary)
    operations: dict[str, LaunchSummary] = defaultdict(LaunchSummary)
    communications: dict[tuple[str, str, int], LaunchSummary] = defaultdict(LaunchSummary)
    groups: dict[str, events.Group] = {}
    held = Held()
    now = (events.SETUP, 0)
    for event in trace.events:
        if isinstance(event, events.Phase):
            now = event.phase, event.step
            phases[now].peak_bytes = max(phases[now].peak_bytes, held.total_bytes)
        elif isinstance(event, events.Op):
            touched = sum(map(tensor_bytes, (*tensors(event.inputs), *event.outputs)))
            phases[now].operations += 1
            phases[now].touched_bytes += touched
            _count(operations[event.name], touched)
        elif isinstance(event, events.Collective | events.PointToPoint):
            phases[now].communications += 1
            phases[now].communicated_bytes += event.bytes
            group = groups.get(event.group, events.Group(event.group, event.group, ()))
            _count(communications[event.kind, group.description, len(group.ranks)], event.bytes)
        elif isinstance(event, events.Group):
            groups[event.name] = event
        elif isinstance(event, events.HostGap):
            phases[now].host_cpu_s += event.cpu_s
        elif held.follow(event):
            phases[now].peak_bytes = max(phases[now].peak_bytes, held.total_bytes)
    return TraceSummary(
        dict(phases),
        _most_first(operations),
        _most_first(communications),
        dict(
            Counter(event.grade for event in trace.events if isinstance(event, events.ValueRead))
        ),
        tuple(event.message for event in trace.events if isinstance(event, events.Violation)),
    )


def _count(summary: LaunchSummary, size: int) -> None:
    summary.launches += 1
    summary.bytes += size


def _most_first(found: dict[Key, LaunchSummary]) -> dict[Key, LaunchSummary]:
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))


MOST_ROWS = 20
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def show(parts: Sequence[Part]) -> None:
    """Print, plain and as wide as reports are; text stays in its lines."""
    texts = (f"{each}\n" if isinstance(each, str) else as_text(each) + "\n" for each in parts)
    show_text("".join(texts))


def bytes_text(size: float) -> str:
    """``12.0 MiB``."""
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


Part = str | RenderableType
"""A line, or what is drawn and has an empty one below it."""


# show


def summary_tables(header: events.Header, summary: TraceSummary) -> list[Part]:
    """A rank's phases, operations and communications."""
    phases = plain_table(
        *("phase", "#step", "#operations", "#tensors", "#communications", "#bytes"),
        *("#script CPU", "#most memory"),
    )
    for (phase, step), part in summary.phases.items():
        phases.add_row(
            phase,
            str(step),
            f"{part.operations:,}",
            bytes_text(part.touched_bytes),
            f"{part.communications:,}",
            bytes_text(part.communicated_bytes),
            f"{part.host_cpu_s * 1e3:.1f} ms",
            bytes_text(part.peak_bytes),
        )
    communications = {
        f"{kind} {description} of {size}": launches
        for (kind, description, size), launches in summary.communications.items()
    }
    about = f"Rank {header.rank} of {header.world_size} on {header.gpu}"
    parts: list[Part] = [
        f"{about}: {' '.join(header.command)}",
        phases,
        "Operations, by bytes of their tensors",
        _launches(summary.operations),
        "Communications",
        _launches(communications),
    ]
    if summary.reads:
        grades = ", ".join(f"{count:,} {grade}" for grade, count in sorted(summary.reads.items()))
        parts.append(f"Values read from the device: {grades}")
    parts += [f"Violation: {message}" for message in summary.violations[:MOST_ROWS]]
    return parts


def _launches(found: Mapping[str, LaunchSummary]) -> Table:
    table = plain_table("name", "#launches", "#bytes")
    for name, launches in list(found.items())[:MOST_ROWS]:
        table.add_row(name, f"{launches.launches:,}", bytes_text(launches.bytes))
    if len(found) > MOST_ROWS:
        table.add_row(f"and {len(found) - MOST_ROWS} more", "", "")
    return table


# collate


def collation_tables(job: Collated) -> list[Part]:
    """Classes of ranks, communicators, and what does not fit."""
    parts: list[Part] = [
        f"{job.world_size:,} ranks in {len(job.traces)} classes",
        _classes(job),
        "Communicators in use, with the collectives that each class launches",
        _communicators(job),
    ]
    parts += _listed("Differences within classes, tolerated", job.classes.tolerated)
    parts += _listed("What keeps classes apart", job.classes.separating)
    parts += _listed("MISMATCHES: launches that meet and do not fit", job.mismatches)
    parts += _listed("ORDER: launches that may hang, or do", job.order_problems)
    return parts


def _listed(title: str, found: Sequence[object]) -> list[Part]:
    if not found:
        return []
    lines = [f"  {each}" for each in found[:MOST_ROWS]]
    if len(found) > MOST_ROWS:
        lines.append(f"  and {len(found) - MOST_ROWS} more")
    return [f"{title} ({len(found)}):", *lines, ""]


def _classes(job: Collated) -> Table:
    traced = Counter(job.classes.first_of.values())
    table = plain_table("class", "#events", "#ranks traced", "#ranks that do so", "#")
    for first, trace in job.traces.items():
        ranks = job.ranks_of_class(first)
        table.add_row(
            f"rank {first}",
            f"{len(trace.events):,}",
            str(traced[first]),
            f"{len(ranks):,}",
            ranks_text(ranks),
        )
    return table


def _communicators(job: Collated) -> Table:
    """By description and size, over the whole job."""
    groups: dict[tuple[str, int], set[Family]] = defaultdict(set)
    collectives: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    sizes: Counter[tuple[str, int]] = Counter()
    for first, trace in job.traces.items():
        keys = {}
        for name, family in job.group_names(first).items():
            keys[name] = family.description, len(family.offsets)
            groups[keys[name]].add(family)
        for event in trace.events:
            if isinstance(event, events.Collective):
                collectives[keys[event.group]][event.kind] += 1
                sizes[keys[event.group]] += event.bytes
    table = plain_table("communicator", "#ranks", "#groups", "#collectives", "#bytes")
    for key, families in groups.items():
        count = sum(len(job.groups_of(family)) for family in families)
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in collectives[key].items())
        table.add_row(key[0], str(key[1]), f"{count:,}", kinds or "none", bytes_text(sizes[key]))
    return table


# kineto


def profile_tables(profile: KinetoTrace, times: Mapping[str, ClassTime], busy: Busy) -> list[Part]:
    """Device time by class of a profile."""
    total_s = sum(time.seconds for time in times.values())
    rank = "" if profile.rank is None else f", rank {profile.rank} of {profile.world_size}"
    steps = f"{profile.steps} steps" if profile.steps else "steps not marked"
    table = plain_table("class", "#kernels", "#time", "#share")
    for name, time in times.items():
        share = time.seconds / total_s if total_s else 0.0
        table.add_row(name, f"{time.kernels:,}", milliseconds(time.seconds), f"{share:.1%}")
    about = f"{profile.gpu or 'unknown device'}{rank}: {len(profile.kernels):,} kernels, {steps}"
    return [
        about,
        table,
        f"computing {milliseconds(busy.computing_s)}, communicating "
        f"{milliseconds(busy.communicating_s)}, of it exposed {milliseconds(busy.exposed_s)}",
    ]


def comparison_table(rows: Sequence[ClassComparison]) -> list[Part]:
    """Measured beside predicted, a step."""
    table = plain_table("class", "#measured", "#predicted", "#error")
    for row in rows:
        error = "" if row.error is None else f"{row.error:+.1%}"
        table.add_row(
            row.kernel_class, milliseconds(row.measured_s), milliseconds(row.predicted_s), error
        )
    measured_s, predicted_s = sum(r.measured_s for r in rows), sum(r.predicted_s for r in rows)
    error = f"{predicted_s / measured_s - 1:+.1%}" if measured_s else ""
    table.add_row("all", milliseconds(measured_s), milliseconds(predicted_s), error)
    return ["A step, measured and predicted", table]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
