"""What a profile says of its GPU: each kernel beside the price of its very shape, as factors.

Unlike a comparison with a predicted step this needs no model: whatever PyTorch recorded with
shapes has a price. The record is for calibration.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainscout.simulators.predictor.io.measurements import FORMAT, VERSION
from trainscout.simulators.predictor.kernels.measured_rows import match_gpu
from trainscout.simulators.predictor.kernels.observed import ObservedClass, observe, price_of
from trainscout.simulators.predictor.kernels.table_rows import kernel_class, row_of
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Attention, Convolution, Kernel, Streaming
from trainscout.simulators.virtual_cluster.profiles.comparison import Comparison
from trainscout.simulators.virtual_cluster.profiles.measured import (
    FIELD,
    MeasuredOperation,
    MeasuredProfile,
)
from trainscout.simulators.virtual_cluster.traces.kernel_classes import CLASSES, COMMUNICATION

# A kernel that ran beside communication for more than this share of its time is no measure of
# the kernel alone, and for more than the other one of overlap.
ALONE, BESIDE = 0.02, 0.9
SOURCE = "profile"
# ``measured_rows`` reads it as: timed within a run, at the clocks that the board then had.
FLAG = "in_situ"


@dataclass(frozen=True)
class ObservedOverlap:
    """Kernels that ran beside communication: how many, of how many shapes, and how much longer
    they took than the same shapes alone (None: none ran both ways)."""

    operations: int
    shapes: int
    slowdown: float | None


def gpu_of(profile: MeasuredProfile, gpus: Mapping[str, Gpu]) -> Gpu:
    """The declared GPU that a profile was taken on.

    Raises:
        InputError: for one that is not declared.
    """
    name = match_gpu(profile.gpu, gpus)[0] if profile.gpu else ""
    if not name:
        problem = f"was taken on {profile.gpu or 'an unnamed GPU'}, which is not declared"
        raise InputError(FIELD, profile.path, problem, "--gpu, or a file in conf/gpu")
    return gpus[name]


def observed_classes(
    operations: Sequence[MeasuredOperation], steps: int, gpu: Gpu
) -> dict[str, ObservedClass]:
    """By class, in the order of ``CLASSES``, communication left out."""
    found = {}
    for name in CLASSES:
        own = [each for each in operations if each.kernel_class == name]
        if own and name not in COMMUNICATION:
            alone = [
                (each.kernels, each.seconds)
                for each in own
                if each.kernels and each.beside_s <= ALONE * each.seconds
            ]
            total_s = sum(each.seconds for each in own)
            found[name] = observe(gpu, alone, total_s, len(own), steps)
    return found


def observed_overlap(operations: Iterable[MeasuredOperation]) -> ObservedOverlap:
    """How much communication slowed the kernels that ran beside it."""
    alone: dict[tuple[Kernel, ...], list[float]] = defaultdict(list)
    beside: dict[tuple[Kernel, ...], list[float]] = defaultdict(list)
    for each in operations:
        if each.kernels and each.beside_s <= ALONE * each.seconds:
            alone[each.kernels].append(each.seconds)
        elif each.kernels and each.beside_s >= BESIDE * each.seconds:
            beside[each.kernels].append(each.seconds)
    both = [kernels for kernels in beside if kernels in alone]
    alone_s = sum(statistics.median(alone[each]) for each in both)
    beside_s = sum(statistics.median(beside[each]) for each in both)
    slowdown = beside_s / alone_s if alone_s else None
    return ObservedOverlap(sum(len(beside[each]) for each in both), len(both), slowdown)


def kernel_rows(
    operations: Iterable[MeasuredOperation], gpu: Gpu
) -> dict[str, list[dict[str, object]]]:
    """Rows of ``measured_kernels`` tables by class: each shape that ran alone, its median."""
    seconds: dict[Kernel, list[float]] = defaultdict(list)
    for each in operations:
        # The time of several kernels says nothing about one of them.
        if len(each.kernels) == 1 and each.beside_s <= ALONE * each.seconds and each.seconds:
            seconds[each.kernels[0]].append(each.seconds)
    tables: dict[str, dict[tuple[object, ...], dict[str, object]]] = defaultdict(dict)
    for kernel, times in seconds.items():
        if isinstance(kernel, Convolution) or not price_of(gpu, (kernel,)):
            continue
        row = row_of(kernel, gpu.name, "bf16")
        if isinstance(kernel, Streaming):
            row["bytes"] = kernel.bytes
        row |= {
            "impl": _implementation(kernel),
            "time_us": round(statistics.median(times) * 1e6, 3),
            "flag": FLAG,
            "source": f"{SOURCE}, {len(times)} calls",
        }
        # Operations of other names may be the same row: the one that was called most stands.
        place = tuple([value for name, value in row.items() if name not in ("time_us", "source")])
        known = tables[kernel_class(kernel)].get(place)
        if known is None or _calls(known) < len(times):
            tables[kernel_class(kernel)][place] = row
    return {name: list(rows.values()) for name, rows in tables.items()}


def _implementation(kernel: Kernel) -> str:
    """What ``measured_rows`` tells kernels of one shape apart by."""
    if isinstance(kernel, Attention):
        return {"flash1": "FA1", "flash2": "FA2"}.get(kernel.kernel, "FA3")
    plain = isinstance(kernel, Streaming) and kernel.kind.endswith("_plain")
    return "pytorch" if plain else SOURCE


def _calls(row: Mapping[str, object]) -> int:
    return int(str(row["source"]).split()[-2])


def observed_record(
    profiles: Sequence[MeasuredProfile], gpu: Gpu, comparisons: Sequence[Comparison] = ()
) -> dict[str, Any]:
    """What was observed, as plain values for calibration: docs/profiles.md has the fields."""
    operations = [each for profile in profiles for each in profile.operations]
    steps = sum(profile.steps for profile in profiles)
    classes = observed_classes(operations, steps, gpu)
    intervals = [each.host_interval_s for each in profiles if each.host_interval_s is not None]
    calls = [each.launch_call_s for each in profiles if each.launch_call_s is not None]
    return {
        "format": FORMAT,
        "version": VERSION,
        "gpu": gpu.name,
        "device": profiles[0].gpu,
        "ranks": [profile.rank for profile in profiles],
        "steps": steps,
        "classes": {
            name: {**asdict(each), "factor": each.factor} for name, each in classes.items()
        },
        "overlap": asdict(observed_overlap(operations)),
        "host": {
            "gap_s": statistics.fmean(each.occupancy.host_gap_s for each in profiles),
            "launches": sum(each.launches for each in operations) / steps,
            "launch_call_s": statistics.median(calls) if calls else None,
            "interval_s": statistics.median(intervals) if intervals else None,
        },
        "step": {
            "measured_s": statistics.fmean(each.step_s for each in profiles),
            "exposed_communication_s": statistics.fmean(
                each.occupancy.exposed_s for each in profiles
            ),
            "predicted_s": comparisons[0].prediction.step_time_s
            if comparisons and all(each.whole for each in comparisons)
            else None,
        },
        "collectives": [
            {**asdict(row), "waits_included": len(profiles) == 1}
            for comparison in comparisons
            for row in comparison.collectives
        ],
    }
