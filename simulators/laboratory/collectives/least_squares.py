"""The least squares problems behind the coefficients of ``execution.py``.

Every price is a sum of non-negative coefficient x term, so each (transport, algorithm, protocol)
is one non-negative least squares problem on relative errors, re-weighted towards the median,
clusters balanced against each other. NCCL's own constants enter as a weak prior inside a node
and for InfiniBand; what is known of InfiniBand is the prior of every other fabric, later by what
the fabric's short calls show, or those of fabrics in the median if none was measured. ``fit.py``
is the command.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
from scipy.optimize import nnls

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.collectives import execution, p2p, tuning_tables
from trainscout.simulators.predictor.collectives.cost import choose
from trainscout.simulators.predictor.collectives.graph import wiring_of
from trainscout.simulators.predictor.collectives.transport import (
    FABRICS,
    INSIDE_ALGORITHM,
    PROTOCOLS,
)
from trainscout.simulators.predictor.io.yaml_files import read_yaml

from .measurements import Measurement, size_band
from .nccl_tests import BEYOND_LAUNCHES, launches_us

# Weight of the prior on one coefficient, as a share of one measurement that misses by 100 %.
PRIOR_WEIGHT = 0.003
# Bytes cost what the link costs: short messages alone may not move a stream far from it.
STREAM_PRIOR_WEIGHT = 0.1
# Latencies are physical: a hop is a hop in every protocol's own way. Two nodes cannot tell one
# from a start, nor long messages from the chunk they carry, so these stay near what is known
# unless many rows say otherwise. So does what fills a tree: nodes of one kind of NIC cannot tell
# its bytes from a handshake, and what is no bytes must not grow as NICs get fewer.
LATENCY_PRIOR_WEIGHT = 1.0
STARTS = ("launch", "peer", "first_part")
LATENCIES = (*STARTS, "hop", "net_hop", "net_inner", "net_start", "net_fill")
# Hops may not be fitted below this share of NCCL's own constant: rows of few ranks cannot tell a
# hop from a launch, and a ring of a thousand ranks must not come out free.
LEAST_HOP = 0.5
# Nor may a byte cost less than this share of what the link takes for it.
LEAST_STREAM = 0.5
# Relative errors below this count as equally good when re-weighting.
GOOD_ENOUGH = 0.03

# The fabric whose coefficients another starts from; InfiniBand's where not listed. Sockets are
# nearest to the transport that also runs on TCP.
BASE = {"ethernet": "tcpx"}
# A call that is all latency.
SHORT_BYTES = 64 << 10
INSIDE = (*(("ring", p) for p in PROTOCOLS), ("nvls", "simple"), ("alltoall", "simple"))
BETWEEN = (
    *((algorithm, p) for algorithm in ("ring", "tree") for p in PROTOCOLS),
    *(("nvls_tree", "simple"), ("pat", "simple"), ("alltoall", "simple")),
)
# Of switches that sum, which InfiniBand has.
IN_SWITCHES = tuple((algorithm, "simple") for algorithm in ("nvls", *tuning_tables.COLLNET))
_PROTOCOL_STREAM = {"ll": 2.0, "ll128": 16 / 15, "simple": 1.0}

# A transport's file and the key of its coefficients in it.
Key = tuple[str, str]
Coefficient = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """One measurement with the terms that explain it; ``net_key`` is empty on one node.

    ``usable`` says whether coefficients may be fitted to it; every row counts in the errors.
    ``least_us`` is what its launches take.
    """

    cluster_id: str
    usable: bool
    transport: str
    nodes: int
    size_bytes: int
    node_key: Key
    node_terms: execution.Terms
    net_key: Key | None
    net_terms: execution.Terms
    time_us: float
    least_us: float = 0.0


@dataclass(frozen=True)
class Fit:
    """Coefficients by key and how many rows, nodes and clusters stand behind each."""

    terms: dict[Key, Coefficient]
    rows: dict[Key, int]
    nodes: dict[Key, int]
    clusters: dict[Key, list[str]]


def weigh(terms: execution.Terms, coefficients: Coefficient) -> float:
    return sum(amount * coefficients[name] for name, amount in terms.items())


def predict_us(result: Fit, row: Row) -> float:
    """What ``result`` says of one row."""
    time_us = weigh(row.node_terms, result.terms[row.node_key])
    if row.net_key is not None:
        net_terms = execution.with_inner_hops(row.net_terms, result.terms[row.node_key])
        time_us += weigh(net_terms, result.terms[row.net_key])
    return max(time_us, row.least_us)


def row_of(measurement: Measurement, usable: bool = True) -> Row:
    """The counted work of one measured collective."""
    gpu, cluster, kind = measurement.gpu, measurement.cluster, measurement.kind
    size = measurement.size_bytes
    wiring = wiring_of(measurement.communicator, gpu, cluster)
    if kind == "all_to_all":
        algorithm, protocol = "alltoall", "simple"
        node, net = p2p.all_to_all_terms(size, wiring)
    else:
        option = choose(kind, size, wiring, measurement.algorithm)
        algorithm, protocol = option.algorithm, option.protocol
        node = execution.node_terms(kind, size, option, wiring)
        net = execution.net_terms(kind, size, option, wiring)
    inside = f"{INSIDE_ALGORITHM.get(algorithm, algorithm)}/{protocol}"
    node_key = ("pcie", inside)
    if wiring.link == "nvlink":
        fitted_as = wiring.architecture.collectives.coefficients_of
        node_key = ("nvlink", f"{fitted_as}/{inside}")
    net_key = (wiring.fabric, f"{algorithm}/{protocol}") if net else None
    return Row(
        cluster_id=measurement.cluster_id,
        usable=usable,
        transport=net_key[0] if net_key else node_key[0],
        nodes=wiring.nodes,
        size_bytes=size,
        node_key=node_key,
        node_terms=node,
        net_key=net_key,
        net_terms=net,
        time_us=measurement.seconds * 1e6,
        least_us=least_us(measurement),
    )


def least_us(measurement: Measurement) -> float:
    """What the launches of one thread on all GPUs of a node take; 0 where each GPU has its own."""
    limits = {**split()["train"], **split()["validation"]}.get(measurement.cluster_id, {})
    together = measurement.nodes <= limits.get("one_thread_nodes", 0)
    return launches_us(measurement.communicator.ranks_per_node) if together else 0.0


@functools.cache
def split() -> dict[str, dict[str, Any]]:
    """Clusters to fit to and to judge by, with what restricts each."""
    document: dict[str, dict[str, Any]] = read_yaml(resources.files(__package__) / "machines.yaml")
    return document


def rows_of(measurements: Iterable[Measurement], part: str) -> list[Row]:
    """The rows of ``train`` or ``validation`` clusters."""
    clusters = split()[part]
    return [
        row_of(each, _usable(each, clusters[each.cluster_id]))
        for each in calls_of(measurements, clusters)
    ]


def calls_of(measurements: Iterable[Measurement], clusters: Collection[str]) -> list[Measurement]:
    """The collectives of some clusters; sends have a model of their own."""
    return [
        each for each in measurements if each.kind != "send_recv" and each.cluster_id in clusters
    ]


def _usable(measurement: Measurement, limits: Mapping[str, Any]) -> bool:
    """Whether a row is inside what ``machines.yaml`` lets be fitted of its cluster."""
    size, nodes = measurement.size_bytes, measurement.cluster.num_nodes
    release = tuning_tables.parse_version(measurement.cluster.nccl_version)[:2]
    several = measurement.communicator.ranks_per_node > 2
    most_bytes = min(
        limits.get("most_bytes_between_nodes", math.inf) if nodes > 1 else math.inf,
        limits.get("most_bytes_beyond_pairs", math.inf) if several else math.inf,
    )
    return (
        limits.get("source", "") in measurement.source
        and size <= most_bytes
        and release >= tuning_tables.OLDEST
        and nodes <= limits.get("most_nodes", math.inf)
        and measurement.seconds * 1e6 >= BEYOND_LAUNCHES * least_us(measurement)
    )


def node_prior(key: str) -> dict[str, float]:
    """NCCL's own constants for the terms inside a node; ``key`` ends in algorithm/protocol."""
    algorithm, protocol = key.split("/")[-2:]
    if algorithm == "alltoall":
        first = {"launch": 8.0, "peer": 0.4, "first_part": 5.0}
        return first | {"stream": 1.0, "own_block": 0.5, "host": 0.1}
    if algorithm == "nvls":
        return {"launch": 25.0, "round": 0.1, "fill": 1.0, "stream": 1.0}
    version = tuning_tables.parse_version("2.22")
    hop = tuning_tables.hop_latency_us(version, "ring", protocol)
    base = tuning_tables.base_latency_us(version, "ring")
    stream = _PROTOCOL_STREAM[protocol]
    return {
        "launch": getattr(base, protocol),
        "hop": hop.nvlink if key.count("/") > 1 else hop.pci,
        "round": 0.1,
        "stream": stream,
        "own_block": 0.5 * stream,
        "fill": 0.5 * stream,
        "host": 0.1 * stream,
    }


def net_prior(key: str) -> dict[str, float]:
    """NCCL's own constants for the terms between nodes."""
    algorithm, protocol = key.split("/")
    if algorithm == "alltoall":
        return {"net_start": 10.0, "net_peer": 2.0, "net_first_part": 5.0, "net_stream": 1.0}
    version = tuning_tables.parse_version("2.23")
    stream = _PROTOCOL_STREAM[protocol]
    hop = tuning_tables.hop_latency_us(version, algorithm, protocol).net
    terms = {"net_start": 10.0, "net_hop": hop, "net_stream": stream}
    if (algorithm, protocol) in IN_SWITCHES or algorithm in ("tree", "nvls_tree"):
        terms["net_fill"] = stream
    if algorithm in ("tree", "ring"):
        # LL needs no handshake of its own; short messages may not show one for long ones.
        terms["net_message"] = 0.3 if protocol == "ll" else 5.0
        terms["net_inner"] = 1.0
    if algorithm == "tree":
        terms["net_second"] = stream
    return terms


def solve(
    terms: Sequence[execution.Terms],
    times_us: np.ndarray,
    offsets_us: np.ndarray,
    prior: Coefficient,
    balance: np.ndarray | None = None,
    scale: Coefficient | None = None,
) -> dict[str, float]:
    """Coefficients of one key: non-negative, relative errors, re-weighted, weak prior.

    ``balance`` is each row's weight, 1 on average; ``scale`` how far a coefficient may usually
    lie from its prior, the prior itself where not given.
    """
    names = list(prior)
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in terms])
    least = np.array([_least(name, (scale or prior)[name], prior[name]) for name in names])
    target = times_us - offsets_us - matrix @ least
    wanted = np.array([prior[name] for name in names])
    usual = np.array([(scale or prior)[name] for name in names])
    strength = [_prior_weight(name) for name in names]
    pull = np.diag(np.sqrt(strength) / usual)
    own = np.ones(len(terms)) if balance is None else np.sqrt(balance)
    weights = np.ones(len(terms))
    found = wanted - least
    for _ in range(20):
        relative = own * weights / times_us
        system = np.vstack([matrix * relative[:, None], pull])
        right = np.concatenate([target * relative, pull @ (wanted - least)])
        found, _ = nnls(system, right)
        errors = np.abs(matrix @ found - target) / times_us
        weights = 1 / np.sqrt(np.maximum(errors, GOOD_ENOUGH))
    return dict(zip(names, (float(value) for value in found + least), strict=True))


def _least(term: str, nominal: float, prior: float) -> float:
    if term.endswith("hop"):
        return LEAST_HOP * min(nominal, prior)
    return LEAST_STREAM * nominal if term.endswith("stream") else 0.0


def _prior_weight(term: str) -> float:
    if term.endswith(("stream", "second")):
        return STREAM_PRIOR_WEIGHT
    return LATENCY_PRIOR_WEIGHT if term in LATENCIES else PRIOR_WEIGHT


def balance_of(rows: Sequence[Row]) -> np.ndarray:
    """Weights that count a cluster's size band by the square root of its rows, 1 on average."""
    cells: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        cells[row.cluster_id, size_band(row.size_bytes)] += 1
    counts = np.array([cells[row.cluster_id, size_band(row.size_bytes)] for row in rows], float)
    weights: np.ndarray = np.sqrt(counts).mean() / np.sqrt(counts)
    return weights


def fit(rows: Sequence[Row]) -> Fit:
    """Coefficients of every transport: inside the nodes first, InfiniBand before what borrows."""
    result = Fit({}, {}, {}, {})
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row.usable:
            groups[row.net_key or row.node_key].append(row)
    known = load_catalogue().architectures.items()
    own = [name for name, each in known if each.collectives.coefficients_of == name]
    inside = [("nvlink", f"{name}/{a}/{p}") for name in own for a, p in INSIDE]
    inside += [("pcie", f"{a}/{p}") for a, p in INSIDE if a != "nvls"]
    exchanges = [key for key in inside if key[0] == "nvlink" and "/alltoall/" in key[1]]
    starts = _starts([row for key in exchanges for row in groups.get(key, [])])
    for key in inside:
        prior = node_prior(key[1]) | (starts if key in exchanges else {})
        _fit_key(key, groups.get(key, []), prior, result)
    measured = {"infiniband", *(owner for owner, _ in groups)}
    later_us = {"infiniband": 0.0}
    for fabric in sorted(FABRICS, key=lambda name: name not in measured):
        _fit_fabric(fabric, groups, result, later_us)
    return result


def _starts(exchanges: Sequence[Row]) -> dict[str, float]:
    """What all-to-alls, of which NCCL has no constants, take before bytes flow: of all GPUs."""
    alike, key = Fit({}, {}, {}, {}), ("nvlink", "alltoall/simple")
    _fit_key(key, exchanges, node_prior(key[1]), alike)
    return {name: alike.terms[key][name] for name in STARTS}


def _fit_fabric(
    fabric: str, groups: Mapping[Key, list[Row]], result: Fit, later_us: dict[str, float]
) -> None:
    """``later_us``: how much later calls start than on the fabric's base, by fabric so far."""
    base, priors = BASE.get(fabric, "infiniband"), {}
    if fabric != "infiniband":
        short = [
            row
            for (owner, _), group in groups.items()
            for row in group
            if owner == fabric and row.size_bytes <= SHORT_BYTES
        ]
        usual_us = float(np.median(list(later_us.values()))) if base == "infiniband" else 0.0
        later_us[fabric] = _later_us(short, base, result) if short else usual_us
        priors = {key: terms for (owner, key), terms in result.terms.items() if owner == base}
    for algorithm, protocol in BETWEEN + IN_SWITCHES * (fabric == "infiniband"):
        key = f"{algorithm}/{protocol}"
        prior = dict(priors.get(key) or net_prior(key))
        prior["net_start"] += later_us[fabric]
        _fit_key((fabric, key), groups.get((fabric, key), []), prior, result)


def _later_us(short: Sequence[Row], base: str, result: Fit) -> float:
    """What a fabric's short calls take beyond the base's price: a median over its clusters."""
    more_us: dict[str, list[float]] = defaultdict(list)
    for row in short:
        assert row.net_key is not None
        priced_us = predict_us(result, replace(row, net_key=(base, row.net_key[1])))
        more_us[row.cluster_id].append(row.time_us - priced_us)
    return max(0.0, float(np.median([np.median(each) for each in more_us.values()])))


def _fit_key(key: Key, group: Sequence[Row], prior: Coefficient, result: Fit) -> None:
    found = dict(prior)
    if group:
        times = np.array([row.time_us for row in group])
        if group[0].net_key is None:
            terms, offsets = [row.node_terms for row in group], np.zeros(len(group))
        else:
            terms = [
                execution.with_inner_hops(row.net_terms, result.terms[row.node_key])
                for row in group
            ]
            offsets = np.array([weigh(r.node_terms, result.terms[r.node_key]) for r in group])
        scale = net_prior(key[1]) if group[0].net_key else prior
        found = solve(terms, times, offsets, prior, balance_of(group), scale)
    result.terms[key] = found
    result.rows[key] = len(group)
    result.nodes[key] = max((row.nodes for row in group), default=0)
    result.clusters[key] = sorted({row.cluster_id for row in group})
