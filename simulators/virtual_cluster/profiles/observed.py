"""What a profile says of its GPU: each kernel beside the price of its very shape, as factors.

Unlike a comparison with a predicted step this needs no model: whatever PyTorch recorded with
shapes has a price. The record is for calibration.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import CollectivePrice, price_collective
from trainscout.simulators.predictor.interference.overlap import overlap_slowdowns
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.measurements import FORMAT, VERSION
from trainscout.simulators.predictor.io.output import json_text, make_folder, write_output
from trainscout.simulators.predictor.kernels.measured_rows import match_gpu
from trainscout.simulators.predictor.kernels.observed import ObservedClass, observe, price_of
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.kernels.table_rows import COLUMNS, kernel_class, row_of
from trainscout.simulators.predictor.question.cluster import MEASURED_KINDS, Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.device_block import kernel_seconds
from trainscout.simulators.predictor.replay.priced import PricedOp
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.kernel_classes import CLASSES, COMMUNICATION
from trainscout.simulators.virtual_cluster.traces.kineto import CollectiveCall
from trainscout.simulators.virtual_cluster.walk.communicators import communicator_of

from .comparison import Comparison
from .measured import FIELD, MeasuredOperation, MeasuredProfile
from .rows import kind_of

# A kernel that ran beside communication for more than this share of its time is no measure of
# the kernel alone, and for more than the other one of overlap.
ALONE, OVERLAPPED = 0.02, 0.9
# Of launches: those that the device waited for say what all take.
MOST = 0.5
SOURCE = "profile"
# ``measured_rows`` reads it as: timed within a run, at the clocks that the board then had.
FLAG = "in_situ"


@dataclass(frozen=True)
class ObservedOverlap:
    """Kernels that ran beside communication: how many, of how many shapes, and how much longer
    they took than the same shapes alone (None: none ran both ways), measured and as predicted of
    that communication (None: it has no price)."""

    operations: int
    shapes: int
    slowdown: float | None
    priced: float | None


@dataclass(frozen=True)
class ObservedCollective:
    """Equal calls: ``calls`` a step of one rank, and the seconds of one, measured and priced. With
    ``waits_included`` one rank was profiled: the shortest call, which is no shorter than what it
    takes once all ranks are there."""

    kind: str
    group_size: int
    leaves_node: bool
    bytes: int
    calls: float
    measured_s: float
    priced_s: float
    waits_included: bool


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
                (each.kernels, each.seconds, 1)
                for each in own
                if each.kernels and each.overlapped_s <= ALONE * each.seconds
            ]
            total_s = sum(each.seconds for each in own)
            found[name] = observe(gpu, alone, total_s, len(own), steps)
    return found


def observed_overlap(
    operations: Iterable[MeasuredOperation], gpu: Gpu, prices: CallPrices
) -> ObservedOverlap:
    """How much communication slowed the kernels that ran beside it."""
    alone: dict[tuple[ir.Kernel, ...], list[float]] = defaultdict(list)
    overlapping: dict[tuple[ir.Kernel, ...], list[MeasuredOperation]] = defaultdict(list)
    for each in operations:
        if each.kernels and each.overlapped_s <= ALONE * each.seconds:
            alone[each.kernels].append(each.seconds)
        elif each.kernels and each.overlapped_s >= OVERLAPPED * each.seconds:
            overlapping[each.kernels].append(each)
    both = [kernels for kernels in overlapping if kernels in alone]
    alone_s = {each: statistics.median(alone[each]) for each in both}
    overlapped_s = sum(statistics.median(op.seconds for op in overlapping[each]) for each in both)
    total_s = sum(alone_s.values())
    priced = [
        [
            slowdown
            for op in overlapping[each]
            if (slowdown := _slowdown(op, gpu, prices)) is not None
        ]
        for each in both
    ]
    priced_s = sum(
        alone_s[each] * statistics.fmean(some)
        for each, some in zip(both, priced, strict=True)
        if some
    )
    return ObservedOverlap(
        sum(len(overlapping[each]) for each in both),
        len(both),
        overlapped_s / total_s if total_s else None,
        priced_s / total_s if total_s and all(priced) else None,
    )


def _slowdown(operation: MeasuredOperation, gpu: Gpu, prices: CallPrices) -> float | None:
    """By how much an operation is predicted to take longer beside its communication."""
    price = None if operation.overlapping is None else prices.of(operation.overlapping)
    if price is None or not price_of(gpu, operation.kernels):
        return None
    kernels = price_kernels(gpu, operation.kernels)
    columns = (operation.kernels, kernels.seconds.tolist(), kernels.memory_bound.tolist())
    priced = [
        PricedOp(kernel, seconds, Evidence.ESTIMATED, bound)
        for kernel, seconds, bound in zip(*columns, strict=True)
    ]
    slower, _ = overlap_slowdowns(
        gpu,
        kernel_seconds(priced)[None],
        np.array([price.channels]),
        np.array([price.wire_bytes_per_s]),
    )
    return float(slower[0, 0])


class CallPrices:
    """Prices of recorded calls on a cluster (None: it is not known, and nothing has one), equal
    ones once."""

    def __init__(self, gpu: Gpu, cluster: Cluster | None) -> None:
        self._gpu, self._cluster = gpu, cluster
        self._known: dict[tuple[str, int, str, int, tuple[int, ...]], CollectivePrice | None] = {}

    def communicator(self, call: CollectiveCall) -> ir.Communicator | None:
        """How the ranks of a call lie; None where they were not recorded, or are more than the
        cluster has."""
        size = 0 if self._cluster is None else self._cluster.num_gpus
        ranks = call.ranks or (tuple(range(size)) if call.group_size == size else ())
        if self._cluster is None or len(ranks) < 2 or max(ranks) >= size:
            return None
        return communicator_of("profiled", ranks, self._cluster)

    def of(self, call: CollectiveCall) -> CollectivePrice | None:
        """What it takes alone, once all ranks are there; None for what has no price."""
        size = max(call.bytes_in, call.bytes_out)
        key = kind_of(call.kind), size, call.dtype, call.group_size, call.ranks
        if key not in self._known:
            group = self.communicator(call)
            self._known[key] = None
            if group is not None and self._cluster is not None and key[0] in MEASURED_KINDS:
                self._known[key] = price_collective(key[0], size, group, self._gpu, self._cluster)
        return self._known[key]


def observed_collectives(
    profiles: Sequence[MeasuredProfile], prices: CallPrices
) -> list[ObservedCollective]:
    """Calls that have a price, of all profiles; those of several have no waits in them any more
    (``ranks.read_profiles``)."""
    equal: dict[tuple[str, int, ir.Communicator], list[float]] = defaultdict(list)
    priced = {}
    for operation in (each for profile in profiles for each in profile.operations):
        call = operation.call
        price = None if call is None else prices.of(call)
        if call is None or price is None:
            continue
        group = prices.communicator(call)
        assert group is not None
        key = kind_of(call.kind), max(call.bytes_in, call.bytes_out), group
        equal[key].append(operation.seconds)
        priced[key] = price.seconds
    steps, waits = sum(profile.steps for profile in profiles), len(profiles) == 1
    return [
        ObservedCollective(
            kind,
            group.size,
            group.nodes > 1,
            size,
            len(times) / steps,
            min(times) if waits else statistics.median(times),
            priced[kind, size, group],
            waits,
        )
        for (kind, size, group), times in equal.items()
    ]


def observed_host_s(profiles: Sequence[MeasuredProfile]) -> float | None:
    """What launching takes the host, seconds a step, were all launches as those that the device
    waited for; None where these are the fewer: what the host does for them is another thing, as
    Python does before an optimizer's step."""
    work = [each for profile in profiles for each in profile.host_work]
    launches, waited = sum(each.launches for each in work), sum(each.waited for each in work)
    if waited < MOST * launches:
        return None
    usual_s = sum(each.waited_s for each in work) / waited
    seconds = sum(
        each.launches * (each.waited_s / each.waited if each.waited else usual_s) for each in work
    )
    return seconds / sum(profile.steps for profile in profiles)


def compared_classes(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    """Seconds a step by class, measured and predicted of the same passes, in the mean of ranks."""
    found: dict[str, dict[str, float]] = {}
    for each in (each for comparison in comparisons for each in comparison.classes):
        row = found.setdefault(each.kernel_class, {"measured_s": 0.0, "predicted_s": 0.0})
        row["measured_s"] += each.measured_s / len(comparisons)
        row["predicted_s"] += each.predicted_s / len(comparisons)
    return found


def kernel_rows(
    operations: Iterable[MeasuredOperation], gpu: Gpu
) -> dict[str, list[dict[str, object]]]:
    """Rows of ``measured_kernels`` tables by class: each shape that ran alone, its median."""
    seconds: dict[ir.Kernel, list[float]] = defaultdict(list)
    for each in operations:
        # The time of several kernels says nothing about one of them.
        if len(each.kernels) == 1 and each.overlapped_s <= ALONE * each.seconds and each.seconds:
            seconds[each.kernels[0]].append(each.seconds)
    tables: dict[str, dict[tuple[object, ...], dict[str, object]]] = defaultdict(dict)
    for kernel, times in seconds.items():
        if isinstance(kernel, ir.Convolution) or not price_of(gpu, (kernel,)):
            continue
        row = row_of(kernel, gpu.name, "bf16")
        if isinstance(kernel, ir.Streaming):
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
        if known is None or int(str(known["source"]).split()[-2]) < len(times):
            tables[kernel_class(kernel)][place] = row
    return {name: list(rows.values()) for name, rows in tables.items()}


def _implementation(kernel: ir.Kernel) -> str:
    """What ``measured_rows`` distinguishes kernels of one shape by."""
    if isinstance(kernel, ir.Attention):
        return {"flash1": "FA1", "flash2": "FA2"}.get(kernel.kernel, "FA3")
    plain = isinstance(kernel, ir.Streaming) and kernel.kind.endswith("_plain")
    return "pytorch" if plain else SOURCE


def observed_record(
    profiles: Sequence[MeasuredProfile],
    gpu: Gpu,
    cluster: Cluster | None,
    comparisons: Sequence[Comparison] = (),
) -> dict[str, Any]:
    """What was observed, as plain values for calibration: docs/profiles.md has the fields.
    ``cluster`` is where the profiles' ranks ran, for prices of what they exchanged."""
    operations = [each for profile in profiles for each in profile.operations]
    steps = sum(profile.steps for profile in profiles)
    classes = observed_classes(operations, steps, gpu)
    prices = CallPrices(gpu, cluster)
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
        "compared": compared_classes(comparisons),
        "overlap": asdict(observed_overlap(operations, gpu, prices)),
        "host": {
            "gap_s": statistics.fmean(each.occupancy.host_gap_s for each in profiles),
            "launches": sum(each.launches for each in operations) / steps,
            "measured_s": observed_host_s(profiles),
            "predicted_s": statistics.fmean(each.host_s for each in comparisons)
            if comparisons
            else None,
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
        "collectives": [asdict(each) for each in observed_collectives(profiles, prices)],
    }


FACTORS, KERNELS = "observed_factors.json", "measured_kernels"


def kept_files(
    observed: Mapping[str, Any], operations: Iterable[MeasuredOperation], gpu: Gpu
) -> dict[str, str]:
    """Texts by name: ``observed_factors.json``, and a table for each class of kernels in
    ``measured_kernels/``."""
    texts = {FACTORS: json_text(observed)}
    for name, rows in kernel_rows(operations, gpu).items():
        texts[f"{KERNELS}/{name}.csv"] = csv_text(COLUMNS[name], rows)
    return texts


def write_files(option: str, directory: Path, texts: Mapping[str, str]) -> None:
    """Write texts under their names in ``directory``, which is made."""
    for name, text in texts.items():
        path = directory / name
        make_folder(option, path.parent)
        write_output(option, path, text)
