"""What a trace amounts to: by phase, by operation, by communicator."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TypeVar

from trainscout.simulators.virtual_cluster.traces.events import (
    SETUP,
    Collective,
    Group,
    HostGap,
    Op,
    Phase,
    PointToPoint,
    Trace,
    ValueRead,
    Violation,
)
from trainscout.simulators.virtual_cluster.traces.fused import Held, storages_within_fusions
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensor_bytes, tensors

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


def summarise(trace: Trace) -> TraceSummary:
    """Count a trace."""
    phases: dict[tuple[str, int], PhaseSummary] = defaultdict(PhaseSummary)
    operations: dict[str, LaunchSummary] = defaultdict(LaunchSummary)
    communications: dict[tuple[str, str, int], LaunchSummary] = defaultdict(LaunchSummary)
    groups: dict[str, Group] = {}
    held = Held(storages_within_fusions(trace.events))
    now = (SETUP, 0)
    for event in trace.events:
        if isinstance(event, Phase):
            now = event.phase, event.step
            phases[now].peak_bytes = max(phases[now].peak_bytes, held.total_bytes)
        elif isinstance(event, Op):
            touched = sum(map(tensor_bytes, (*tensors(event.inputs), *event.outputs)))
            phases[now].operations += 1
            phases[now].touched_bytes += touched
            _count(operations[event.name], touched)
        elif isinstance(event, Collective | PointToPoint):
            phases[now].communications += 1
            phases[now].communicated_bytes += event.bytes
            group = groups.get(event.group, Group(event.group, event.group, ()))
            _count(communications[event.kind, group.description, len(group.ranks)], event.bytes)
        elif isinstance(event, Group):
            groups[event.name] = event
        elif isinstance(event, HostGap):
            phases[now].host_cpu_s += event.cpu_s
        elif held.follow(event):
            phases[now].peak_bytes = max(phases[now].peak_bytes, held.total_bytes)
    return TraceSummary(
        dict(phases),
        _most_first(operations),
        _most_first(communications),
        dict(Counter(event.grade for event in trace.events if isinstance(event, ValueRead))),
        tuple(event.message for event in trace.events if isinstance(event, Violation)),
    )


def _count(summary: LaunchSummary, size: int) -> None:
    summary.launches += 1
    summary.bytes += size


def _most_first(found: dict[Key, LaunchSummary]) -> dict[Key, LaunchSummary]:
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))
