"""``trainscout measure``: what one machine takes for one job, in minutes, in one file.

Kernels of the job's own shapes (those that take most of its step first), memory bandwidth, the
host's launches, how kernels fare beside communication, and under torchrun collectives. The file is
written as rows come, and what is in it is not measured again. ``simulator.measured_kernels=``,
``cluster.measured_collectives=``, ``kernels`` and ``interference validate`` read it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.collectives.measured import bus_factor
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.measurements import FORMAT, VERSION, read_measurements
from trainscout.simulators.predictor.io.output import check_output, write_output
from trainscout.simulators.predictor.kernels.measured_rows import match_gpu
from trainscout.simulators.predictor.kernels.observed import observe, price_of, profiled_class
from trainscout.simulators.predictor.kernels.table_rows import KEYS, kernel_class, row_of
from trainscout.simulators.predictor.question.cluster import MEASURED_KINDS
from trainscout.simulators.predictor.question.errors import InputError, require_positive
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.virtual_cluster.traces.files import read_directory
from trainscout.simulators.virtual_cluster.traces.lowering.regions import lower_events

from .calibration.questions import job_of_settings, settings_of
from .device.timing import Rows, open_torch
from .device.torch_collectives import TorchCollectives, node_counts
from .interference import measure as interference
from .interference.slowdown_rows import read_samples
from .kernels.measure import CLASSES, CPU, Machine, anonymous, measure_kernel

OUTPUT = "--output"
# Of the time that is left: kernels decide most; slowdowns beside communication come last.
KERNEL_SHARE = 0.75
COLLECTIVE_BYTES = (1 << 20, 16 << 20, 128 << 20, 1 << 30)
# Within a node besides: when a call starts. Between nodes the least sizes tell of a ring's hops,
# which short messages take another protocol for.
START_BYTES = 8 << 10
COPY = ir.Streaming("copy", "memcpy", 4 << 30)
SAVE_EVERY_S = 5.0


@dataclass
class Measurements:
    """The file while it grows."""

    path: Path
    content: dict[str, Any]
    kernels: dict[str, Rows] = field(default_factory=dict)
    slowdowns: Rows | None = None
    _saved_at_s: float = float("-inf")

    @staticmethod
    def opened(path: Path, about: Mapping[str, Any]) -> Measurements:
        """A new file, or one of the same GPU that is there already.

        Raises:
            InputError: for a file of something else.
        """
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        if path.exists():
            content = read_measurements(OUTPUT, path)
            if content.get("device") != about["device"]:
                problem = f"holds times of {content.get('device')}, this is {about['device']}"
                raise InputError(OUTPUT, path, problem, "another file")
        content |= about
        found = Measurements(path, content)
        tables = content.setdefault("kernels", {})
        for name in CLASSES:
            rows = tables.setdefault(name, [])
            found.kernels[name] = Rows(path, KEYS[name], rows, found.save_soon)
        rows = content.setdefault("slowdowns", [])
        found.slowdowns = Rows(path, interference.KEY, rows, found.save_soon)
        return found

    def save_soon(self) -> None:
        """Write, unless that was done just now."""
        if time.monotonic() - self._saved_at_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        write_output(OUTPUT, self.path, json.dumps(self.content, indent=1) + "\n")
        self._saved_at_s = time.monotonic()


@dataclass(frozen=True)
class Subject:
    """What is measured for: a GPU, the precision of its job, kernels with their calls, and the
    job where one was asked for (None: traces of a script were)."""

    gpu: Gpu
    precision: str
    calls: Counter[ir.TransformerKernel]
    job: Job | None = None


def of_job(job: Job) -> Subject:
    """The kernels of a job's step."""
    return Subject(job.gpu, job.precision, kernels_of(job), job)


def of_traces(paths: Sequence[Path]) -> Subject:
    """The kernels that a script launched, as ``trainscout run`` traced it, over all its steps.
    Convolutions, which have no table, are left out.

    Raises:
        InputError: for traces that cannot be read, of no GPU that is declared, or of several.
    """
    calls: Counter[ir.TransformerKernel] = Counter()
    names = set()
    for path in paths:
        for trace in read_directory(path):
            names.add(trace.header.gpu)
            for lowered in lower_events(trace.events):
                for op in () if lowered is None else lowered.kernels:
                    if isinstance(op, ir.TransformerKernel):
                        calls[anonymous(op)] += 1
    if len(names) != 1:
        raise InputError("--traces", paths[0], f"is of {len(names)} kinds of GPU", "one")
    gpu = load_catalogue().gpus.chosen("--traces", names.pop())
    return Subject(gpu, "bf16", calls)


def kernels_of(job: Job) -> Counter[ir.TransformerKernel]:
    """Every distinct kernel of the job's busiest ranks, with its calls a step; mixers' fused ones,
    which are no single kernel here, are left out."""
    calls: Counter[ir.TransformerKernel] = Counter()

    def add(block: ir.Block, count: int) -> None:
        for op in block.ops:
            if isinstance(op, ir.TransformerKernel) and not ir.is_of_a_mixer(op):
                calls[anonymous(op)] += count

    for stage in build_workload(job).stages:
        add(stage.finish, 1)
        add(stage.optimizer, 1)
        for run in stage.runs:
            add(run.forward, run.count * job.num_micro_batches)
            add(run.backward, run.count * job.num_micro_batches)
    return calls


def measure_kernels(
    machine: Machine, subject: Subject, gpu_name: str, found: Measurements, deadline_s: float
) -> int:
    """Time kernels, those with most of the predicted step first; how many are left."""
    price = {op: price_of(subject.gpu, (op,)) * count for op, count in subject.calls.items()}
    left = 0
    for op in sorted(price, key=lambda each: -price[each]):
        rows = found.kernels[kernel_class(op)]
        if time.monotonic() < deadline_s:
            measure_kernel(machine, op, rows, gpu_name, subject.precision)
        else:
            left += row_of(op, gpu_name, subject.precision) not in rows
    return left


def factors(subject: Subject, found: Measurements, gpu_name: str) -> dict[str, Any]:
    """Measured kernels beside their prices by class, weighted by their calls a step; the hot
    time where a kernel was long enough to have one."""
    times: dict[str, list[tuple[tuple[ir.TransformerKernel, ...], float, int]]] = {}
    seconds: dict[str, float] = defaultdict(float)
    for op, count in subject.calls.items():
        wanted = row_of(op, gpu_name, subject.precision)
        rows = [
            row
            for row in found.kernels[kernel_class(op)].rows
            if all(str(row.get(name)) == str(value) for name, value in wanted.items())
        ]
        if rows:
            took_s = float(str(rows[-1]["time_us"])) * 1e-6
            times.setdefault(profiled_class(op), []).append(((op,), took_s, count))
            seconds[profiled_class(op)] += took_s * count
    observed = {
        name: observe(subject.gpu, own, seconds[name], len(own), 1) for name, own in times.items()
    }
    return {name: asdict(each) | {"factor": each.factor} for name, each in observed.items()}


def overlap_of(path: Path, gpu: Gpu) -> dict[str, float]:
    """Of kernels beside imitated communication, all alike: how many, how many times as long they
    took and are predicted to take, and how much that differs from one to the other, of the mean
    excess."""
    samples = read_samples([path], {gpu.name: gpu})
    took, priced = samples.slowdown - 1, samples.physical - 1
    apart = took - priced * took.mean() / priced.mean()
    return {
        "operations": len(took),
        "slowdown": 1 + float(took.mean()),
        "priced": 1 + float(priced.mean()),
        "log_spread": float(np.std(apart) / max(abs(took.mean()), 1e-9)),
    }


def measure_collectives(device: TorchCollectives) -> list[dict[str, object]]:
    """Rows of ``cluster.measured_collectives``: every kind, over one node up to all."""
    rows: list[dict[str, object]] = []
    for kind in MEASURED_KINDS:
        for nodes in node_counts(device.nodes):
            ranks = nodes * device.ranks_per_node
            sizes = COLLECTIVE_BYTES if nodes > 1 else (START_BYTES, *COLLECTIVE_BYTES)
            for size in sizes if ranks > 1 else ():
                seconds = device.seconds(kind, nodes, size)
                if seconds is not None:
                    rate = size * bus_factor(kind, ranks) / seconds * 1e-9
                    row = {"collective": kind, "nodes": nodes, "bytes": size}
                    rows.append(row | {"bus_GBps": round(rate, 3), "source": "trainscout measure"})
    return rows


def main(
    arguments: Sequence[str],
    machine: Machine | None = None,
    overlap: interference.OverlapDevice | None = None,
    collectives: TorchCollectives | None = None,
) -> int:
    """Run the command. Devices stand in for the machine's own."""
    parser = command_parser(
        "measure",
        "Measure this machine for one job: kernels of its shapes, those that take most of the "
        "step first, memory bandwidth, what a launch costs the host, kernels beside "
        "communication (needs nvcc), and under torchrun collectives over one node up to all. "
        "One file, for simulator.measured_kernels= and cluster.measured_collectives=. What is in "
        "it is not measured again, so a stopped run goes on.",
        "trainscout measure model=llama3_8b cluster=h100_64 recipe.tp=2 --output h100.json\n"
        "torchrun --nproc-per-node 8 --nnodes 4 ... -m trainscout measure model=llama3_8b \\\n"
        "    cluster=h100_64 --output h100.json\n"
        "trainscout measure --traces traces --output h100.json     # what a script launched\n"
        "trainscout measure model=llama3_8b cluster=h100_64 --output tried.json --device cpu",
        usage="SETTING=VALUE ... | --traces DIR --output FILE [options]",
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="the job's")
    parser.add_argument(
        "--traces",
        type=Path,
        action="append",
        metavar="DIR|FILE",
        help="kernels of these traces of trainscout run instead of a job's; may be repeated",
    )
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write or go on")
    parser.add_argument("--budget-s", type=float, default=300.0, help="stop after (default 300)")
    parser.add_argument("--config-dir", type=Path, help="folder of your own declarations")
    parser.add_argument("--device", default="cuda", help="cuda (default), or cpu to try it")
    options = parser.parse_args(arguments)
    require_positive("--budget-s", options.budget_s, allow_zero=True)
    if options.traces and options.settings:
        problem = "are given beside traces, which say their kernels"
        raise InputError("settings", " ".join(options.settings), problem, "one of both")
    if options.traces:
        subject = of_traces(options.traces)
    else:
        requested = settings_of(options.settings, "settings")
        subject = of_job(job_of_settings(requested, config_dir=options.config_dir))
    check_output(OUTPUT, options.output)
    end_s = time.monotonic() + options.budget_s
    if collectives is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch, clock = open_torch(options.device)
        collectives = TorchCollectives(torch, clock, options.device)
    rows: list[dict[str, object]] = []
    if collectives is not None:
        rows = _collectives(collectives, subject.job)
        if collectives.rank:
            return OK  # the first process writes
    machine = machine or Machine(options.device)
    gpu_name = _check_gpu(machine, subject.gpu)
    about = {"gpu": gpu_name, "device": machine.name, "software": machine.software}
    found = Measurements.opened(options.output, about)
    if rows:
        found.content["collectives"] = rows
    _measure_one(machine, overlap, subject, gpu_name, found, end_s)
    found.save()
    print(_summary(found))
    return OK


def _collectives(device: TorchCollectives, job: Job | None) -> list[dict[str, object]]:
    if job is not None and device.ranks_per_node != job.cluster.gpus_per_node:
        problem = f"is not what torchrun started: {device.ranks_per_node} processes a node"
        field_ = "cluster.gpus_per_node"
        raise InputError(field_, job.cluster.gpus_per_node, problem, "as many as GPUs")
    try:
        return measure_collectives(device)
    finally:
        device.close()


def _check_gpu(machine: Machine, gpu: Gpu) -> str:
    """What rows call the GPU; refuses another than the cluster's."""
    if machine.name == CPU:
        return CPU
    name = match_gpu(machine.name, {**load_catalogue().gpus, gpu.name: gpu})[0]
    if name and name != gpu.name:
        problem = f"is of {gpu.name}, and this machine has {machine.name} ({name})"
        raise InputError("cluster", gpu.name, problem, f"a cluster of {name}, or gpu={name}")
    return gpu.name


def _measure_one(
    machine: Machine,
    overlap: interference.OverlapDevice | None,
    subject: Subject,
    gpu_name: str,
    found: Measurements,
    end_s: float,
) -> None:
    """What one GPU says, into ``found``."""
    found.content["host"] = machine.host_s()
    if gpu_name != CPU:
        built = machine.build(COPY)
        rate = built.bytes / machine.burst_s(built)
        found.content["bandwidth"] = {
            "copy_bytes_per_s": rate,
            "of_peak": rate / subject.gpu.memory_bandwidth_bytes_per_s,
        }
    share_s = KERNEL_SHARE * max(0.0, end_s - time.monotonic())
    left = measure_kernels(machine, subject, gpu_name, found, time.monotonic() + share_s)
    if left:
        print(f"{left} kernels left: run it again, or give it more --budget-s", file=sys.stderr)
    if gpu_name == CPU:
        return
    found.content["classes"] = factors(subject, found, gpu_name)
    assert found.slowdowns is not None
    try:
        overlap = overlap or interference.OverlapDevice()
    except InputError as error:
        print(f"kernels beside communication are not measured: {error}", file=sys.stderr)
        return
    interference.measure(overlap, subject.gpu, found.slowdowns, end_s)
    if found.slowdowns.rows:
        found.save()
        found.content["overlap"] = overlap_of(found.path, subject.gpu)


def _summary(found: Measurements) -> str:
    content = found.content
    kernels = ", ".join(f"{len(rows.rows)} {name}" for name, rows in found.kernels.items())
    host_us = {name: seconds * 1e6 for name, seconds in content["host"].items()}
    lines = [
        f"{content['device']}, {content['software']}: {found.path}",
        f"kernels    {kernels}",
        f"host       {host_us['launch_s']:.1f} us a launch, {host_us['module_s']:.1f} us a module",
    ]
    if "bandwidth" in content:
        rate = content["bandwidth"]
        lines.append(
            f"memory     {rate['copy_bytes_per_s'] * 1e-9:,.0f} GB/s copied, "
            f"{rate['of_peak']:.0%} of the declared"
        )
    for name, each in content.get("classes", {}).items():
        if each["factor"] is not None:
            lines.append(f"{name:10} {each['factor']:.3f} x its price, {each['shapes']} shapes")
    lines.append(f"overlap    {len(content['slowdowns'])} rows")
    lines.append(f"collectives {len(content.get('collectives', ()))} rows")
    return "\n".join(lines)
