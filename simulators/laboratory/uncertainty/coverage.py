"""Do error bars hold what they say? Checked, and tuned, on runs that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty.features import LAUNCH_BOUND, similarity, unlike
from trainscout.simulators.predictor.uncertainty.interval import LEVEL, Own, interval
from trainscout.simulators.predictor.uncertainty.table import (
    ResidualTable,
    Tuning,
    source_balanced,
)

FOLDS = 5
_HALVINGS = 12
# The share of one or two runs is 0, 50 or 100 %, which moves a mean over six architectures by
# eight points.
_TELLING = 3
# How far below the level runs of one way of leaving out may be where the mean of all is at it.
_APART = 0.04
_ROUNDS = 2
# Between which values each is looked for, and its digits.
_TUNED = {
    "tail_factor": (0.1, 3.0, 3),
    "host_error": (0.0, 2.0, 3),
    "kernel_error": (0.0, 1.0, 3),
    "new_framework": (1.0, 3.0, 3),
    "new_gpu": (0.0, 0.3, 4),
}


@dataclass(frozen=True)
class Coverage:
    """Shares of runs inside the interval of ``level`` made without them.

    ``five_fold``: without a random fifth of the runs. ``leave_one_source_out``: without any run
    of their publication, over all runs; ``per_source`` is the mean over publications of that.
    ``per_framework``, ``per_cluster`` (a GPU and a fabric), ``per_gpu`` and ``per_architecture``:
    means over those of three runs or more, each without any run of its own, as ``per_source`` is;
    None where there is only one.
    ``host_bound``: mean over publications, without any run of theirs, of their launch-bound runs;
    None where there are none. ``median_width`` is the median, each publication left out, of the
    interval's high end over its low end, less one.
    """

    level: float
    n: int
    five_fold: float
    leave_one_source_out: float
    per_source: float
    per_framework: float | None
    per_cluster: float | None
    per_gpu: float | None
    per_architecture: float | None
    host_bound: float | None
    median_width: float

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True)
class _LeftOut:
    """For each run, the weights (n, n), the novelty (n,) and what else widens its interval when
    its group is left out."""

    weights: NDArray[np.float64]
    novelty: NDArray[np.float64]
    own: tuple[Own, ...]


def calibrate(table: ResidualTable, level: float = LEVEL) -> tuple[Tuning, Coverage]:
    """The tuning with which runs left out are inside as often as ``level`` says.

    The next run is one of a publication that is not in the table, perhaps of software, on a
    cluster, a GPU or an architecture that is not either: the mean of those five is brought to the
    level, and none more than ``_APART`` below. Runs that wait for the host have an error of their
    own, what a launch takes: ``host_bound`` is brought there by it;
    ``per_framework`` after them, by how much wider intervals of software without runs are.

    Runs on a GPU that is not in the table share one unknown error, which its neighbours do not
    tell. How much of its kernels' errors a step has brings the mean of ``per_gpu`` and
    ``per_architecture`` to the level; where all of them do not, how far the interval reaches at
    least.
    """
    tuning = Tuning()
    left_out = _left_out_by_kind(table)

    def held(kinds: Iterable[str], tried: Tuning) -> list[float]:
        return [
            _mean_by(groups, _inside(table, without, tried, level))
            for kind, (groups, without) in left_out.items()
            if kind in kinds
        ]

    def short(tried: Tuning) -> bool:
        shares = held(left_out, tried)
        return float(np.mean(shares)) < level or min(shares) < level - _APART

    def holds(tried: Tuning) -> bool:
        inside = _inside(table, left_out["source"][1], tried, level)
        share = _host_bound(table, inside)
        return share is None or share >= level

    def holds_frameworks(tried: Tuning) -> bool:
        return all(share >= level for share in held(["framework"], tried))

    def holds_gpus(tried: Tuning) -> bool:
        shares = held(["gpu", "architecture"], tried)
        return not shares or float(np.mean(shares)) >= level

    def tuned(name: str, reached: Callable[[Tuning], bool]) -> Tuning:
        """With the smallest value of a field at which a condition holds."""
        low, high, digits = _TUNED[name]

        def tried(value: float) -> Tuning:
            return replace(tuning, **{name: round(value, digits)})

        return tried(_bisect(lambda value: reached(tried(value)), low, high))

    for _ in range(_ROUNDS):
        tuning = tuned("tail_factor", short)
        tuning = tuned("host_error", holds)
        if "gpu" in left_out:
            tuning = tuned("kernel_error", holds_gpus)
    tuning = tuned("new_framework", holds_frameworks)
    tuning = tuned("new_gpu", holds_gpus)
    tuning = tuned("tail_factor", short)
    while short(tuning) and tuning.tail_factor > _TUNED["tail_factor"][0]:
        # A run more or less of a small group is much of it: back to where intervals hold.
        tuning = replace(tuning, tail_factor=round(tuning.tail_factor - 0.001, 3))
    return tuning, _coverage(table, left_out, tuning, level)


def coverage(table: ResidualTable, tuning: Tuning, level: float = LEVEL) -> Coverage:
    """How often runs left out are inside with a given tuning."""
    return _coverage(table, _left_out_by_kind(table), tuning, level)


def _left_out_by_kind(table: ResidualTable) -> dict[str, tuple[NDArray[np.int64], _LeftOut]]:
    """What is left out as a whole: each run's number of it, (n,), and what tells of it then."""
    kinds = {
        "source": table.sources,
        "framework": table.frameworks,
        "cluster": table.clusters,
        "gpu": table.gpus,
        "architecture": table.architectures,
    }
    return {
        kind: (groups, _leave_out(table, groups))
        for kind, groups in kinds.items()
        if kind == "source" or len(np.unique(groups)) > 1
    }


def _host_bound(table: ResidualTable, inside: NDArray[np.bool_]) -> float | None:
    """Mean over publications of their launch-bound runs; None where there are none."""
    bound = table.host_shares > LAUNCH_BOUND
    return _mean_by(table.sources[bound], inside[bound]) if bound.any() else None


def _coverage(
    table: ResidualTable,
    left_out: Mapping[str, tuple[NDArray[np.int64], _LeftOut]],
    tuning: Tuning,
    level: float,
) -> Coverage:
    folds = np.random.default_rng(0).permutation(len(table.residuals)) % FOLDS
    inside = {
        kind: _inside(table, without, tuning, level) for kind, (_, without) in left_out.items()
    }
    shares = {kind: _mean_by(left_out[kind][0], each) for kind, each in inside.items()}
    low, high = _ends(table, left_out["source"][1], tuning, level)
    return Coverage(
        level=level,
        n=len(table.residuals),
        five_fold=float(_inside(table, _leave_out(table, folds), tuning, level).mean()),
        leave_one_source_out=float(inside["source"].mean()),
        per_source=shares["source"],
        per_framework=shares.get("framework"),
        per_cluster=shares.get("cluster"),
        per_gpu=shares.get("gpu"),
        per_architecture=shares.get("architecture"),
        host_bound=_host_bound(table, inside["source"]),
        median_width=float(np.median(np.expm1(high - low))),
    )


def _leave_out(table: ResidualTable, groups: NDArray[np.int64]) -> _LeftOut:
    n, frameworks = len(table.residuals), table.frameworks
    weights, novelty, own = np.zeros((n, n)), np.zeros(n), []
    for row in range(n):
        one = slice(row, row + 1)
        left = groups != groups[row]
        apart = unlike(table.kinds, table.kinds[:, one])
        near = similarity(apart, table.sizes, table.sizes[:, one])
        near = np.where(left, np.maximum(near, 1e-300), 0.0)
        weights[row], novelty[row] = source_balanced(near, table.sources)
        same = left & (table.gpus == table.gpus[row])
        own.append(
            Own(
                float(table.kernel_errors[row]),
                float(table.host_shares[row]),
                len(set(table.sources[same].tolist())),
                bool((left & (frameworks == frameworks[row])).any()),
            )
        )
    return _LeftOut(weights, novelty, tuple(own))


def _ends(
    table: ResidualTable, left_out: _LeftOut, tuning: Tuning, level: float
) -> NDArray[np.float64]:
    """Ends of every run's interval, shape (2, n)."""
    runs = zip(left_out.weights, left_out.novelty, left_out.own, strict=True)
    return np.array(
        [interval(table, weights, new, own, tuning, level) for weights, new, own in runs]
    ).T


def _inside(
    table: ResidualTable, left_out: _LeftOut, tuning: Tuning, level: float
) -> NDArray[np.bool_]:
    low, high = _ends(table, left_out, tuning, level)
    inside: NDArray[np.bool_] = (low <= table.residuals) & (table.residuals <= high)
    return inside


def _mean_by(groups: NDArray[np.int64], values: NDArray[np.bool_]) -> float:
    """Mean over the groups of the share of each that holds; over those of ``_TELLING`` runs or
    more where there are any."""
    found, runs = np.unique(groups, return_counts=True)
    telling = found[runs >= min(_TELLING, runs.max())]
    return float(np.mean([values[groups == group].mean() for group in telling]))


def _bisect(reached: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest value, within the halvings, at which a monotone condition holds."""
    if reached(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
