"""Fit the coefficients of ``execution.py`` to nccl-tests results.

    python -m simulators.collectives.fit results.csv --gpus conf/gpu

``results.csv`` has one nccl-tests row per line (columns ``collective num_gpus num_nodes bytes
time_us nccl_version algo notes``; ``notes`` names the machine as ``cluster=`` and grades the row
as ``q=``, of which A and B are used). ``machines.yaml`` says what each machine is.

Every price is a sum of non-negative coefficient x term, so each (hardware, algorithm, protocol)
is one non-negative least squares problem on relative errors, re-weighted towards the median.
NCCL's own constants enter as a weak prior: where the data cannot separate two terms (a fabric
measured on two nodes only) or say nothing, they stand.
"""

from __future__ import annotations

import argparse
import csv
import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import nnls

from simulators.collectives import execution, tuning_tables
from simulators.collectives.cost import choose
from simulators.collectives.graph import wiring_of
from simulators.job import Cluster, Gpu
from simulators.workload.ir import Communicator

# Weight of the prior on one coefficient, as a share of one measurement that misses by 100 %.
PRIOR_WEIGHT = 0.003
# Bytes cost what the link costs: short messages alone may not move a stream far from it.
STREAM_PRIOR_WEIGHT = 0.1
# Hops may not be fitted below this share of NCCL's own constant: rows of few ranks cannot tell a
# hop from a launch, and a ring of a thousand ranks must not come out free.
LEAST_HOP = 0.5
# Relative errors below this count as equally good when re-weighting.
GOOD_ENOUGH = 0.03

Key = tuple[str, str, str]
_KINDS = {"alltoall": "all_to_all"}
_PROTOCOL_STREAM = {"ll": 2.0, "ll128": 16 / 15, "simple": 1.0}


@dataclass(frozen=True)
class Row:
    """One measurement with the terms that explain it."""

    machine: str
    fit: bool
    nodes: int
    node_key: Key
    node_terms: execution.Terms
    net_key: Key
    net_terms: execution.Terms
    time_us: float


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@functools.cache
def load_gpu(directory: Path, name: str) -> Gpu:
    """A GPU as declared in ``directory`` (YAML with exponents that PyYAML reads as text)."""
    declared = yaml.safe_load((directory / f"{name}.yaml").read_text())
    declared.pop("sources", None)
    peaks = {key: float(value) for key, value in declared.pop("peak_flops").items()}
    return Gpu(peak_flops=peaks, **{key: _number(value) for key, value in declared.items()})


def load_rows(results: Path, gpus: Path) -> list[Row]:
    """Every usable row of ``results`` on a known machine."""
    text = resources.files(__package__).joinpath("machines.yaml").read_text(encoding="utf-8")
    machines = yaml.safe_load(text)
    rows = []
    with results.open(newline="") as lines:
        for record in csv.DictReader(lines):
            notes = dict(part.split("=", 1) for part in record["notes"].split(";") if "=" in part)
            machine = notes.get("cluster", "")
            usable = notes.get("q") in ("A", "B") and not record["algo"] and record["num_nodes"]
            if machine in machines and usable and record["collective"] != "sendrecv":
                row = _row(machine, machines[machine], record, gpus)
                if row is not None:
                    rows.append(row)
    return rows


def _row(machine: str, declared: dict[str, Any], record: dict[str, str], gpus: Path) -> Row | None:
    ranks, nodes = int(float(record["num_gpus"])), int(float(record["num_nodes"]))
    size, time_us = int(float(record["bytes"])), float(record["time_us"])
    nics = declared.get("nics_per_node", 0)
    if ranks % nodes or (nodes > 1 and not nics):
        return None
    gpu = load_gpu(gpus, declared["gpu"])
    if "nvlink_links" in declared:
        gpu = replace(gpu, name=machine, nvlink_links=declared["nvlink_links"])
    version = record["nccl_version"] if re.match(r"\d+\.\d+", record["nccl_version"]) else ""
    cluster = Cluster(
        name=machine,
        num_nodes=nodes,
        gpus_per_node=declared["gpus_per_node"],
        nics_per_node=nics,
        nic_gbps=declared.get("nic_gbps", 0),
        fabric=declared.get("fabric", "none"),
        source="machines.yaml",
        nvswitch=declared.get("nvswitch", True),
        cpu=declared.get("cpu", "intel"),
        nccl_version=version or declared["nccl_version"],
    )
    kind = _KINDS.get(record["collective"], record["collective"])
    per_node = ranks // nodes
    wiring = wiring_of(Communicator(machine, ranks, per_node, nodes), gpu, cluster)
    if kind == "all_to_all":
        algorithm, protocol = "alltoall", "simple"
        node, net = execution.all_to_all_terms(size, wiring)
    else:
        option = choose(kind, size, wiring)
        algorithm, protocol = option.algorithm, option.protocol
        node = execution.node_terms(kind, size, option, wiring)
        net = execution.net_terms(kind, size, option, wiring)
    inner = {"tree": "ring", "pat": "ring", "nvls_tree": "nvls"}.get(algorithm, algorithm)
    hardware = wiring.generation if wiring.link == "nvlink" else "pci"
    return Row(
        machine,
        declared["fit"] and size >= declared.get("least_bytes", 0),
        nodes,
        (hardware, inner, protocol),
        node,
        (wiring.fabric, algorithm, protocol),
        net,
        time_us,
    )


def node_prior(key: Key) -> dict[str, float]:
    """NCCL's own constants for the terms inside a node."""
    hardware, algorithm, protocol = key
    if algorithm == "alltoall":
        return {"launch": 8.0, "peer": 0.4, "first_part": 5.0, "stream": 1.0, "own_block": 0.5}
    if algorithm == "nvls":
        return {"launch": 25.0, "loop": 5.0, "stream": 1.0}
    version = tuning_tables.parse_version("2.22")
    hop = tuning_tables.hop_latency_us(version, "ring", protocol)
    base = tuning_tables.base_latency_us(version, "ring")
    stream = _PROTOCOL_STREAM[protocol]
    return {
        "launch": getattr(base, protocol),
        "hop": hop.pci if hardware == "pci" else hop.nvlink,
        "stream": stream,
        "own_block": 0.5 * stream,
        "fill": 0.5 * stream,
    }


def net_prior(key: Key) -> dict[str, float]:
    """NCCL's own constants for the terms between nodes."""
    _, algorithm, protocol = key
    if algorithm == "alltoall":
        return {"net_start": 10.0, "net_peer": 2.0, "net_first_part": 5.0, "net_stream": 1.0}
    version = tuning_tables.parse_version("2.23")
    stream = _PROTOCOL_STREAM[protocol]
    hop = tuning_tables.hop_latency_us(version, algorithm, protocol).net
    terms = {"net_start": 10.0, "net_hop": hop, "net_stream": stream}
    if algorithm == "tree":
        terms["net_fill"] = stream
    return terms


def solve(
    terms: list[execution.Terms],
    times_us: np.ndarray,
    offsets_us: np.ndarray,
    prior: dict[str, float],
) -> dict[str, float]:
    """Coefficients of one key: non-negative, relative errors, re-weighted, weak prior."""
    names = list(prior)
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in terms])
    least = np.array([LEAST_HOP * prior[n] if n.endswith("hop") else 0.0 for n in names])
    target = times_us - offsets_us - matrix @ least
    wanted = np.array([prior[name] for name in names])
    strength = [STREAM_PRIOR_WEIGHT if n.endswith("stream") else PRIOR_WEIGHT for n in names]
    pull = np.diag(np.sqrt(strength) / wanted)
    weights = np.ones(len(terms))
    for _ in range(20):
        scale = weights / times_us
        system = np.vstack([matrix * scale[:, None], pull])
        right = np.concatenate([target * scale, pull @ (wanted - least)])
        found, _ = nnls(system, right)
        errors = np.abs(matrix @ found - target) / times_us
        weights = 1 / np.sqrt(np.maximum(errors, GOOD_ENOUGH))
    return dict(zip(names, (float(value) for value in found + least), strict=True))


def _entry(found: dict[str, float], errors: np.ndarray, group: Sequence[Row]) -> dict[str, Any]:
    return {
        "terms": {name: float(f"{value:.4g}") for name, value in found.items()},
        "rows": len(errors),
        "median_error": round(float(np.median(errors)), 3) if len(errors) else None,
        "machines": sorted({row.machine for row in group}),
        "nodes": max((row.nodes for row in group), default=0),
    }


def fit_node(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Coefficients inside a node, from rows of one node."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row.fit and not row.net_terms:
            groups[row.node_key].append(row)
    keys = {
        (hardware, algorithm, protocol)
        for hardware in ("ampere", "hopper", "blackwell", "pci")
        for algorithm, protocol in (
            *(("ring", protocol) for protocol in tuning_tables.PROTOCOLS),
            ("nvls", "simple"),
            ("alltoall", "simple"),
        )
    }
    table = {}
    for key in sorted(keys):
        group, prior = groups.get(key, []), node_prior(key)
        times = np.array([row.time_us for row in group])
        found = dict(prior)
        if group:
            found = solve([row.node_terms for row in group], times, np.zeros(len(group)), prior)
        predicted = np.array([weigh(row.node_terms, found) for row in group])
        errors = np.abs(predicted - times) / times if group else times
        table["/".join(key)] = _entry(found, errors, group)
    return table


def weigh(terms: execution.Terms, coefficients: dict[str, float]) -> float:
    return sum(amount * coefficients[name] for name, amount in terms.items())


def fit_net(rows: list[Row], node: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Coefficients between nodes, given those inside; rows of several nodes.

    A fabric's unmeasured keys are InfiniBand's plus the latency by which the fabric's measured
    keys exceed InfiniBand's; where InfiniBand has none either, the prior is used.
    """
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row.fit and row.net_terms:
            groups[row.net_key].append(row)
    table: dict[str, dict[str, Any]] = {}
    for key, group in sorted(groups.items()):
        prior = net_prior(key)
        times = np.array([row.time_us for row in group])
        inside = [node["/".join(row.node_key)]["terms"] for row in group]
        offsets = np.array(
            [weigh(row.node_terms, terms) for row, terms in zip(group, inside, strict=True)]
        )
        found = solve([row.net_terms for row in group], times, offsets, prior)
        predicted = offsets + np.array([weigh(row.net_terms, found) for row in group])
        errors = np.abs(predicted - times) / times
        table["/".join(key)] = _entry(found, errors, group)
    for fabric in sorted({key[0] for key in groups}):
        extra_us = _extra_latency_us(fabric, table)
        for algorithm, protocol in NET_KEYS:
            name = f"{fabric}/{algorithm}/{protocol}"
            if name not in table:
                reference = table.get(f"infiniband/{algorithm}/{protocol}")
                known = (
                    reference["terms"] if reference else net_prior((fabric, algorithm, protocol))
                )
                borrowed = {**known, "net_start": known["net_start"] + extra_us}
                table[name] = _entry(borrowed, np.array([]), ())
    return table


NET_KEYS = (
    *((algorithm, p) for algorithm in ("ring", "tree") for p in tuning_tables.PROTOCOLS),
    *(("nvls_tree", "simple"), ("pat", "simple"), ("alltoall", "simple")),
)


def _extra_latency_us(fabric: str, table: dict[str, dict[str, Any]]) -> float:
    """Median excess of ``fabric`` over InfiniBand in start plus one hop, over shared keys."""
    excess = [0.0] if fabric == "infiniband" else []
    for name, entry in table.items():
        owner, _, rest = name.partition("/")
        reference = table.get(f"infiniband/{rest}")
        if owner == fabric != "infiniband" and reference is not None and entry["rows"]:
            latencies = [
                each["terms"]["net_start"] + each["terms"].get("net_hop", 0.0)
                for each in (entry, reference)
            ]
            excess.append(latencies[0] - latencies[1])
    return max(0.0, float(np.median(excess)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the collective coefficients.")
    parser.add_argument("results", type=Path, help="CSV of nccl-tests rows")
    parser.add_argument("--gpus", type=Path, default=Path("conf/gpu"))
    arguments = parser.parse_args()
    rows = load_rows(arguments.results, arguments.gpus)
    node = fit_node(rows)
    document = {
        "command": f"python -m simulators.collectives.fit {arguments.results.name}",
        "provenance": (
            "public nccl-tests results of the machines in machines.yaml, grades A and B, median "
            "relative error of the fitted rows beside each entry; entries with 0 rows are NCCL's "
            "own constants scaled to the fabric"
        ),
        "node": node,
        "net": fit_net(rows, node),
    }
    target = Path(__file__).with_name("fitted.yaml")
    temporary = target.with_suffix(".tmp")
    temporary.write_text(yaml.safe_dump(document, sort_keys=True, width=99), encoding="utf-8")
    temporary.replace(target)


if __name__ == "__main__":
    main()
