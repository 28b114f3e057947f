"""Rows of an nccl-tests table as questions for the model.

A row says what ran (``collective num_gpus num_nodes gpus_per_node bytes``), on what (``gpu
intra_link nic_gbps_per_gpu nccl_version``) and how long it took (``time_us``). What a row leaves
out is taken from the usual server of its GPU (``gpus.yaml``) or from the published design of a
platform that the row names (``platforms.yaml``); every such step is recorded as an assumption.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.collectives.tuning_tables import NEWEST, OLDEST, parse_version
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, read_text
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator

KIB = 1024
# Upper ends of the bands in bytes, and their names.
BANDS = (
    (16 * KIB, "<=16KiB"),
    (256 * KIB, "16-256KiB"),
    (4096 * KIB, "256KiB-4MiB"),
    (65536 * KIB, "4-64MiB"),
)
LAST_BAND = ">64MiB"
BAND_NAMES = (*(name for _, name in BANDS), LAST_BAND)


def size_band(size_bytes: int) -> str:
    """The band of the size that nccl-tests prints."""
    return next((name for most, name in BANDS if size_bytes <= most), LAST_BAND)


COLUMNS = ("collective", "gpu", "num_gpus", "num_nodes", "bytes", "time_us")
KINDS = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"),
    "send_recv",
)
ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "pat", "collnet_direct", "collnet_chain")
_NVL72_GPUS = 72


class UnusableRowError(Exception):
    """A row that cannot be predicted; the text says why."""


@dataclass(frozen=True)
class Measurement:
    """One call and its measured time.

    ``algorithm`` is the one that was forced, empty where NCCL chose. ``cluster_id`` is the
    table's name for the machine and ``source`` where the row is from, for grouping only.
    """

    id: str
    cluster_id: str
    source: str
    kind: str
    size_bytes: int
    seconds: float
    algorithm: str
    communicator: Communicator
    gpu: Gpu
    cluster: Cluster
    assumptions: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """Among how many the GPUs lie."""
        return self.communicator.nodes


@dataclass(frozen=True)
class Skipped:
    """A row of the table that is not predicted, and why."""

    id: str
    reason: str


def read_table(path: Path) -> tuple[list[Measurement], list[Skipped]]:
    """Every row of a CSV as a measurement, or as skipped with its reason.

    Raises:
        InputError: when the file cannot be read, lacks a needed column or holds no rows.
    """
    reader = csv.DictReader(io.StringIO(read_text("table", path)))
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError("table", path.name, f"lacks {', '.join(missing)}", str(COLUMNS))
        records = list(reader)
    except csv.Error as problem:
        raise InputError("table", str(path), str(problem), "a readable CSV file") from problem
    if not records:
        raise InputError("table", path, "has a header and no rows")
    measurements, skipped = [], []
    for number, record in enumerate(records, start=2):
        name = record.get("id") or f"line {number}"
        try:
            measurements.append(describe(name, record))
        except UnusableRowError as reason:
            skipped.append(Skipped(name, str(reason)))
    return measurements, skipped


def describe(name: str, record: Mapping[str, str | None]) -> Measurement:
    """One row as a measurement.

    Raises:
        UnusableRowError: when the row is not a collective's time or its machine cannot be told.
    """
    row = {key: (value or "").strip() for key, value in record.items() if key}
    notes = row.get("notes", "")
    grade = _note(notes, "q")
    if grade in ("C", "X"):
        raise UnusableRowError(
            f"graded {grade} by the table: noisy, degraded or another transport"
        )
    kind = _kind(row["collective"])
    algorithm, about_algorithm = _algorithm(row)
    if "component" in row.get("algo", ""):
        raise UnusableRowError("time of a part of a collective, not of a call")
    size, time_us = _whole(row, "bytes"), _number(row, "time_us")
    ranks, nodes = _whole(row, "num_gpus"), _whole(row, "num_nodes")
    if ranks < 2:
        raise UnusableRowError("one GPU does not communicate")
    if ranks % nodes:
        raise UnusableRowError(f"{ranks} GPUs do not divide over {nodes} nodes")
    machine = _Machine(row, ranks, nodes)
    return Measurement(
        id=name,
        cluster_id=_note(notes, "cluster") or row.get("source", ""),
        source=row.get("source", ""),
        kind=kind,
        size_bytes=size,
        seconds=time_us * 1e-6,
        algorithm=algorithm,
        communicator=machine.communicator,
        gpu=machine.gpu,
        cluster=machine.cluster,
        assumptions=machine.assumptions + about_algorithm,
    )


def _kind(label: str) -> str:
    """The collective of a name as NCCL, nccl-tests or its binaries spell it."""
    name = _joined(label).removeprefix("nccl").removesuffix("perf")
    for kind in KINDS:
        if name == _joined(kind):
            return kind
    raise UnusableRowError(f"collective {label!r} is not one of {', '.join(sorted(KINDS))}")


def _algorithm(row: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The algorithm that NCCL_ALGO names, "" where NCCL chose, and what that assumes; a protocol
    that was set is not: only algorithms are forced."""
    algorithm, protocol, assumed = row.get("algo", ""), row.get("proto", ""), []
    found = next((each for each in ALGORITHMS if _joined(algorithm) == _joined(each)), "")
    if algorithm and not found:
        assumed.append(f"algorithm {algorithm} is not known: NCCL's own choice is priced")
    if protocol:
        assumed.append(f"protocol {protocol} was stated: NCCL's own choice is priced")
    return found, tuple(assumed)


def _joined(name: str) -> str:
    """``AllReduce``, ``all-reduce`` and ``all_reduce`` alike."""
    return re.sub(r"[\s_-]", "", name.lower())


class _Machine:
    """Gpu, cluster and communicator of a row, with what had to be assumed for them."""

    def __init__(self, row: Mapping[str, str], ranks: int, nodes: int) -> None:
        self._row = row
        self._assumed: list[str] = []
        # Only the rows' wording names a platform: its notes without their key=value parts.
        words = [
            row.get("source", ""),
            row.get("intra_link", ""),
            _note(row.get("notes", ""), "cluster"),
        ]
        words += [part for part in row.get("notes", "").split(";") if not re.match(r"\w+=", part)]
        self._text = " ".join(words).lower().replace("_", " ")
        self._entry = self._gpu_entry()
        per_node = ranks // nodes
        self.gpu = self._describe_gpu()
        self.cluster = self._describe_cluster(per_node, nodes)
        self.communicator = self._describe_communicator(ranks, per_node, nodes)
        self.assumptions = tuple(self._assumed)

    def _gpu_entry(self) -> dict[str, Any]:
        name = self._row["gpu"]
        for entry in _load("gpus.yaml"):
            if re.search(entry["pattern"], name, re.IGNORECASE):
                return entry
        raise UnusableRowError(f"GPU {name!r} is not in gpus.yaml")

    def _describe_gpu(self) -> Gpu:
        gpu = load_catalogue().gpus[str(self._entry["gpu"])]
        links = int(self._entry.get("nvlink_links", gpu.nvlink_links))
        link = self._row.get("intra_link", "").lower()
        if "pcie" in link and "nvlink" not in link and "nvlink" not in self._row["gpu"].lower():
            links = 0
        each = gpu.nvlink_bytes_per_s / max(1, gpu.nvlink_links)
        return replace(gpu, nvlink_links=links, nvlink_bytes_per_s=links * each)

    def _describe_cluster(self, per_node: int, nodes: int) -> Cluster:
        server, link = self._entry["server"], self._row.get("intra_link", "").lower()
        server_gpus = max(int(server["gpus"]), per_node)
        if re.search(r"\(4 ?gpu|4/node|\(4\b", link + self._row["gpu"].lower()):
            server_gpus = max(4, per_node)
        # Boards of four GPUs are wired pair by pair; switches come with eight, or with racks.
        four = server_gpus == 4 and not self.gpu.name.startswith("gb")
        mesh = "direct" in link or "mesh" in link or four
        pair = "pair" in (link + self._row["gpu"]).lower()
        domain = 2 if pair else _NVL72_GPUS if self.gpu.name.startswith("gb") else None
        if self.gpu.nvlink_links == 0:
            domain = None
        fabric, nics, gbps, cpu = "none", 0, 0.0, str(server["cpu"])
        if nodes > 1:
            fabric, nics, gbps, cpu = self._network(server_gpus, cpu)
        version = self._version(str(server["nccl"]))
        return Cluster(
            name=self.gpu.name,
            num_nodes=nodes,
            gpus_per_node=server_gpus,
            nics_per_node=nics,
            nic_gbps=gbps,
            fabric=fabric,
            source="a table's row",
            nvlink_domain=domain,
            nvswitch=not (mesh or pair or self.gpu.nvlink_links == 0),
            oversubscription=1.0,
            cpu=cpu,
            nccl_version=version,
        )

    def _network(self, server_gpus: int, cpu: str) -> tuple[str, int, float, str]:
        """Fabric, NICs per server, Gb/s of each, and the host CPU."""
        known = _load("platforms.yaml")
        platform = next((each for each in known if re.search(each["pattern"], self._text)), None)
        if platform is None:
            fabric, nic_gbps = "infiniband", None
            self._assumed.append("InfiniBand: the table names no fabric")
        else:
            fabric, nic_gbps = platform["fabric"], platform.get("nic_gbps")
            cpu = platform.get("cpu", cpu)
            self._assumed.append(f"{fabric}, {cpu} hosts: {platform['source']}")
        if self._row.get("nic_gbps_per_gpu", ""):
            per_gpu = _number(self._row, "nic_gbps_per_gpu")
        else:
            usual = platform.get("gbps_per_gpu", nic_gbps) if platform else None
            per_gpu = float(usual or self._entry["server"]["nic_gbps"])
            self._assumed.append(f"{per_gpu:g} Gb/s per GPU: usual for this GPU on this fabric")
        printed = re.search(r"(\d+) ?(?:nic )?x ?(?:cx\d )?(\d+)g\b", self._text)
        rate = float(printed[2]) if printed else max(per_gpu, float(nic_gbps or per_gpu))
        nics = max(1, round(per_gpu * server_gpus / rate))
        return fabric, nics, per_gpu * server_gpus / nics, cpu

    def _version(self, usual: str) -> str:
        stated = self._row.get("nccl_version", "")
        if re.fullmatch(r"\d+\.\d+(\.\d+)?(-\d+)?", stated):
            if not OLDEST <= parse_version(stated)[:2] <= NEWEST:
                known = " to ".join("{}.{}".format(*each) for each in (OLDEST, NEWEST))
                self._assumed.append(
                    f"NCCL {stated} is not among the known {known}: priced as the nearest"
                )
            return stated
        named = re.search(r"\b(2\.\d+(?:\.\d+)?) in ", self._row.get("notes", ""))
        if named:
            self._assumed.append(
                f"NCCL {named[1]}: named by the notes for this machine's other rows"
            )
            return named[1]
        self._assumed.append(f"NCCL {usual}: the usual release for this GPU")
        return usual

    def _describe_communicator(self, ranks: int, per_node: int, nodes: int) -> Communicator:
        if self.cluster.nvlink_domain == _NVL72_GPUS:
            domains = math.ceil(ranks / _NVL72_GPUS)
            while ranks % domains:
                domains += 1
            if nodes > 1:
                self._assumed.append(f"{domains} NVLink domain(s) of {ranks // domains} GPUs")
            return Communicator("row", ranks, ranks // domains, domains)
        domain = self.cluster.nvlink_domain
        if domain == 2 and per_node > 2:
            return Communicator("row", ranks, 2, ranks // 2)
        return Communicator("row", ranks, per_node, nodes)


def _note(notes: str, key: str) -> str:
    match = re.search(rf"(?:^|;){key}=([^;]*)", notes)
    return match[1] if match else ""


def _number(row: Mapping[str, str], field: str) -> float:
    try:
        value = float(row[field])
    except ValueError:
        raise UnusableRowError(f"{field} {row[field]!r} is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise UnusableRowError(f"{field} {row[field]!r} is not positive")
    return value


def _whole(row: Mapping[str, str], field: str) -> int:
    value = _number(row, field)
    if value != int(value):
        raise UnusableRowError(f"{field} {row[field]!r} is not a whole number")
    return int(value)


@functools.cache
def _load(name: str) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = read_yaml(resources.files(__package__) / name)
    return document
