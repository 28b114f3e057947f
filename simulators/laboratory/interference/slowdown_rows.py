"""Measured slowdowns: from the rows of a table to what is measured and what is predicted of it.

Columns read: gpu, compute_class, comm_kind, slowdown, level, source, and where there are any
compute_detail, note, n_gpus, t_alone_us, channels, comm_bytes_per_s, reserved_sms,
memory_throughput (a fraction). Rows of a level other than ``kernel*`` describe whole
steps or the communication's own slowdown (``comm-slowdown``) and are kept apart.

What published rows leave out is taken from their text (``(20 CTAs)``, ``24 channels``,
``NCU compute 8% DRAM 87%``) or else assumed, and counted as assumed:

* channels: NCCL uses twice the NVLink links, at most 24 (A100 24, A800 and H800 16, H100 24);
  two for a send to a neighbour, and two between two GPUs whose link is not stated (PCIe);
* device-memory traffic: ``TRAFFIC_PER_SENT_BYTE`` times 0.6 of the NVLink rate, or of 50 GB/s
  for all-to-all between nodes, 25 GB/s for sends, 12 GB/s over PCIe;
* share of time limited by DRAM: ``MEMORY_BOUND`` of the kernel's class.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainscout.simulators.predictor.interference.overlap import (
    KERNEL_CLASSES,
    Floats,
    overlap_slowdowns,
)
from trainscout.simulators.predictor.io.measurements import read_measurements, rows_text
from trainscout.simulators.predictor.kernels.measured_rows import match_gpu
from trainscout.simulators.predictor.question.errors import InputError, check_size
from trainscout.simulators.predictor.question.gpu import Gpu

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("gpu", "compute_class", "comm_kind", "slowdown", "level", "source")
# The NCCL maintainers' figure is 2 to 3 (nccl issue 1428).
TRAFFIC_PER_SENT_BYTE = 2.5
NVLINK_EFFICIENCY = 0.6
MOST_CHANNELS = 24
NETWORK_BYTES_PER_S = {"all_to_all": 50e9, "send_recv": 25e9}
PCIE_BYTES_PER_S = 12e9
NEIGHBOUR_CHANNELS = 2
MEMORY_BOUND = {
    "gemm": 0.25,
    "grouped_gemm": 0.25,
    "attention": 0.15,
    "norm": 1.0,
    "streaming": 1.0,
}
_CLASS_WORDS = (
    ("grouped", "grouped_gemm"),
    ("gemm", "gemm"),
    ("matmul", "gemm"),
    ("conv", "gemm"),
    ("att", "attention"),
    ("norm", "norm"),
)
_COLLECTIVE_WORDS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("send", "send_recv"),
    ("alltoall", "all_to_all"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
)
_CHANNELS_TEXT = re.compile(r"\((\d+) CTAs\)|(\d+) channels|(\d+)-block", re.IGNORECASE)
_LAUNCHED_TEXT = re.compile(r"(\d+)CTA")
_COUNTERS_TEXT = re.compile(r"compute [\d.]+% DRAM ([\d.]+)%")


@dataclass(frozen=True)
class Samples:
    """Measured slowdowns of kernels on declared GPUs, columns of shape (n,).

    ``slowdown`` is measured, ``physical`` what ``overlap_slowdowns`` says, ``time_us`` the
    kernel's time alone (NaN where it is not stated), ``memory_bound`` the share of it limited by
    DRAM, ``group`` numbers the source (``sources``), ``assumed`` marks rows whose ``channels``
    were not stated. ``skipped`` counts rows left out by reason.
    """

    kernel_class: np.ndarray
    time_us: Floats
    memory_bound: Floats
    channels: Floats
    slowdown: Floats
    physical: Floats
    group: np.ndarray
    sources: tuple[str, ...]
    gpu: np.ndarray
    assumed: np.ndarray
    skipped: Mapping[str, int]


def read_samples(tables: Sequence[Path], gpus: Mapping[str, Gpu], comm: bool = False) -> Samples:
    """The kernel rows of tables (``comm``: those of communication slowed by kernels).

    Raises:
        InputError: for an unreadable table, a missing column or no usable row.
    """
    import pandas as pd

    parts = []
    for table in tables:
        source: Path | io.StringIO = table
        if table.suffix == ".json":
            source = io.StringIO(rows_text(read_measurements("table", table).get("slowdowns")))
        try:
            check_size("table", table)
            rows = pd.read_csv(source)
        except (OSError, ValueError) as error:
            raise InputError("table", table, f"cannot be read ({error})") from error
        for name in REQUIRED:
            if name not in rows.columns:
                raise InputError("table", table, f"has no column {name!r}", list(rows.columns))
        parts.append(rows)
    return _samples(pd.concat(parts), gpus, "comm-slowdown" if comm else "kernel")


def _samples(rows: pd.DataFrame, gpus: Mapping[str, Gpu], level: str) -> Samples:
    found: list[dict[str, Any]] = []
    sources: list[str] = []
    skipped: dict[str, int] = {}
    for row in rows.to_dict("records"):
        text = str(row["level"])
        wanted = text.startswith(level) and not text.endswith("-mean")
        gpu = gpus.get(match_gpu(str(row["gpu"]), gpus)[0])
        if not wanted:
            reason: str | None = f"level {text}"
        elif not _number(row.get("slowdown")) > 0:
            reason = "no slowdown"
        else:
            reason = None if gpu else f"GPU {row['gpu']!r} is not declared"
        if reason or gpu is None:
            skipped[str(reason)] = skipped.get(str(reason), 0) + 1
            continue
        found.append(_sample({str(name): value for name, value in row.items()}, gpu, level))
        # One laboratory's tables and paragraphs are one source.
        sources.append(re.sub(r" (Table|Figure|section) .*", "", str(row["source"])))
    if not found:
        raise InputError("table", 0, "has no usable row", f"rows of level {level}")
    kinds = tuple(sorted(set(sources)))
    group = np.array([kinds.index(source) for source in sources])
    columns = {name: np.array([each[name] for each in found]) for name in found[0]}
    return Samples(**columns, group=group, sources=kinds, skipped=skipped)


def _sample(row: Mapping[str, Any], gpu: Gpu, level: str) -> dict[str, Any]:
    """What a row says, what its text says, and the rest as documented above: its ``Samples``."""
    text = f"{row.get('compute_detail')} {row.get('note')}"
    collective = _match(str(row["comm_kind"]), _COLLECTIVE_WORDS)
    kernel = _match(str(row["compute_class"]), _CLASS_WORDS) or "streaming"
    ranks = _number(row.get("n_gpus"))
    channels, assumed = _number(row.get("channels")), False
    stated = _CHANNELS_TEXT.search(text)
    if np.isnan(channels) and stated:
        channels = float(next(group for group in stated.groups() if group))
    elif np.isnan(channels):
        channels, assumed = _assumed_channels(gpu, collective, ranks), True
    traffic = _number(row.get("comm_bytes_per_s"))
    if np.isnan(traffic):
        traffic = _assumed_traffic(gpu, collective, ranks)
    reserved = _number(row.get("reserved_sms"))
    launched = _LAUNCHED_TEXT.search(str(row["compute_class"]))
    if np.isnan(reserved):
        reserved = gpu.sms - float(launched.group(1)) if launched else 0.0
    counted = _COUNTERS_TEXT.search(text)
    bound = _number(row.get("memory_throughput"))
    if counted:
        bound = float(counted.group(1)) / 100
    bound = MEMORY_BOUND[kernel] if np.isnan(bound) else min(bound, 1.0)
    kernel_s = np.zeros((1, 2, len(KERNEL_CLASSES)))
    kernel_s[0, :, KERNEL_CLASSES.index(kernel)] = 1.0, bound
    # SMs the kernel never had cannot be taken from it.
    taken = np.array([max(channels - reserved, 0.0)])
    on_kernel, on_wires = overlap_slowdowns(gpu, kernel_s, taken, np.array([traffic]))
    return {
        "kernel_class": kernel,
        "time_us": _number(row.get("t_alone_us")),
        "memory_bound": bound,
        "channels": channels,
        "slowdown": float(row["slowdown"]),
        "physical": float((on_kernel if level == "kernel" else on_wires)[0, 0]),
        "gpu": gpu.name,
        "assumed": assumed,
    }


def _assumed_channels(gpu: Gpu, collective: str | None, ranks: float) -> float:
    if collective == "send_recv" or ranks == 2:
        return float(NEIGHBOUR_CHANNELS)
    return float(min(2 * gpu.nvlink_links, MOST_CHANNELS))


def _assumed_traffic(gpu: Gpu, collective: str | None, ranks: float) -> float:
    if collective in NETWORK_BYTES_PER_S:
        sent = NETWORK_BYTES_PER_S[collective]
    elif ranks == 2 or not gpu.nvlink_bytes_per_s:
        sent = PCIE_BYTES_PER_S
    else:
        sent = NVLINK_EFFICIENCY * gpu.nvlink_bytes_per_s
    return TRAFFIC_PER_SENT_BYTE * sent


def _match(text: str, words: tuple[tuple[str, str], ...]) -> str | None:
    plain = re.sub(r"[^a-z]", "", text.lower())
    return next((name for word, name in words if word in plain), None)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")
