"""What a replay's device time is made of: how sure, by which rule, in which arithmetic."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.engine import Ints
from trainscout.simulators.predictor.replay.priced import EVIDENCE
from trainscout.simulators.virtual_cluster.execution.breakdown import Played
from trainscout.simulators.virtual_cluster.execution.contents import Contents, Priced
from trainscout.simulators.virtual_cluster.execution.issue import Issued
from trainscout.simulators.virtual_cluster.execution.program import NO_CONTENT
from trainscout.simulators.virtual_cluster.traces.collate import Collated
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering import Lowered
from trainscout.simulators.virtual_cluster.traces.lowering.pointwise import UNKNOWN_RULE

COMMUNICATION_RULE = "communication"


@dataclass(frozen=True)
class Replay:
    """A job that was played. ``excess``: see ``breakdown``."""

    job: Collated
    gpu: Gpu
    cluster: Cluster
    issued: dict[int, Issued]
    played: Played
    priced: Priced
    contents: Contents
    excess: float


@dataclass(frozen=True)
class Shares:
    """Shares of device seconds: by grade of evidence, by rule of lowering, of operations no rule
    knows by name; and the names of what was only estimated."""

    evidence: dict[str, float]
    coverage: dict[str, float]
    unknown: dict[str, float]
    estimated: tuple[str, ...]


def contents_of(replay: Replay, issued: Issued) -> Ints:
    """Contents of a rank's device work in the step, once for every time they ran."""
    tasks = np.array(issued.device[issued.step_start :], dtype=np.int64)
    contents = replay.played.content[tasks[tasks >= 0]]
    chosen: Ints = contents[contents != NO_CONTENT]
    return chosen


def main_precision(replay: Replay) -> str:
    """The arithmetic of most FLOPs, of all ranks together."""
    flops: dict[str, float] = defaultdict(float)
    for rank, issued in replay.issued.items():
        counts = np.bincount(contents_of(replay, issued), minlength=len(replay.contents.items))
        weight = len(replay.job.ranks_of_class(rank))
        for number in np.flatnonzero(counts):
            item = replay.contents.items[number]
            if isinstance(item, Lowered) and replay.priced.flops[number]:
                dtype = str(getattr(item.kernels[0], "dtype", ""))
                flops[dtype] += float(replay.priced.flops[number] * counts[number]) * weight
    known = {name: sum_ for name, sum_ in flops.items() if name in replay.gpu.peak_flops}
    return max(known, key=known.__getitem__) if known else next(iter(replay.gpu.peak_flops))


def shares_of(replay: Replay) -> Shares:
    """What all ranks' device seconds of the step are made of."""
    grades = np.zeros(len(EVIDENCE))
    rules: dict[str, float] = defaultdict(float)
    unknown: dict[str, float] = defaultdict(float)
    estimated: set[str] = set()
    for rank, issued in replay.issued.items():
        weight = len(replay.job.ranks_of_class(rank))
        counts = np.bincount(contents_of(replay, issued), minlength=len(replay.contents.items))
        for number in np.flatnonzero(counts):
            item = replay.contents.items[number]
            price = replay.priced.prices[number]
            each = np.array(price.evidence_s) * counts[number] * weight
            seconds = float(each.sum())
            rule = COMMUNICATION_RULE
            if isinstance(item, Lowered):
                rule = item.rule
                if item.estimated:
                    estimated |= {kernel.name for kernel in item.kernels}
                    # However well bytes are priced, that they are all it costs is a guess.
                    each = np.zeros(len(EVIDENCE))
                    each[-1] = seconds
            grades += each
            rules[rule] += seconds
            estimated |= price.estimated
        for name, seconds in _unknown(replay, rank, issued).items():
            unknown[name] += seconds * weight
    total = float(grades.sum()) or 1.0
    evidence = {str(grade): float(s) / total for grade, s in zip(EVIDENCE, grades, strict=True)}
    coverage = {name: s / total for name, s in sorted(rules.items(), key=lambda each: -each[1])}
    shares = {name: s / total for name, s in sorted(unknown.items(), key=lambda each: -each[1])}
    return Shares(evidence, coverage, shares, tuple(sorted(estimated)))


def _unknown(replay: Replay, rank: int, issued: Issued) -> dict[str, float]:
    """Seconds of operations no rule knows, by name."""
    found: dict[str, float] = defaultdict(float)
    events = replay.job.traces[rank].events
    for index in range(issued.step_start, len(events)):
        task = issued.device[index]
        event = events[index]
        if task < 0 or not isinstance(event, Op):
            continue
        content = int(replay.played.content[task])
        item = replay.contents.items[content]
        if isinstance(item, Lowered) and item.rule == UNKNOWN_RULE:
            found[event.name] += float(replay.priced.seconds[content])
    return found
