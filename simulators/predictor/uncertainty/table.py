"""The residuals of published runs: what each prediction was, and how far off.

The file is written by ``trainscout residuals`` and says so in its header, YAML behind
``#``, together with how often error bars drawn from it hold runs that are left out.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.io.csv_files import headed_csv, read_headed_csv

from .features import KINDS, SIZES, Features, distances, kinds_of, similarity, sizes_of, unlike

RESIDUALS = Path(__file__).with_name("residuals.csv")
PARTS = (
    "compute",
    "overlap_slowdown",
    "stragglers",
    "host",
    "tp_communication",
    "cp_communication",
    "ep_communication",
    "pp_communication",
    "dp_communication",
    "bubble",
    "optimizer",
)
"""Parts of a step, whose shares of it say what a layout spends it on."""
COLUMNS = (
    "id",
    "source",
    "sweep",
    "layout",
    "blind_test",
    *(field.name for field in fields(Features)),
    *PARTS,
    "tflops",
    "log_residual",
)
ERRORS = ("kernel_error", "host_share", "fabric_error", "slow_fabric_error")
"""Features that are relative errors of a step of their own."""


@dataclass(frozen=True)
class Residual:
    """One measured run beside its prediction.

    ``source`` is its publication, ``sweep`` names runs that did the same work in other layouts,
    ``layout`` numbers their recipes.
    ``blind_test``: the number of the test that predicted it before anybody had looked at the
    publication, 0 of a run that was in view while the predictor was made.
    ``shares`` of the predicted step by ``PARTS``.
    ``log_residual`` is the natural logarithm of measured over predicted step time: of blind tests
    the step that was predicted then, since that is what a stranger gets. ``tflops``: model
    TFLOP/s of a GPU in that step, by which layouts of a sweep are ranked.
    """

    id: str
    source: str
    sweep: str
    layout: int
    blind_test: int
    features: Features
    shares: Mapping[str, float]
    tflops: float
    log_residual: float


class ResidualTable:
    """Residuals as columns, ascending by residual, and the ``ids`` of their runs.

    ``residuals`` and ``blind_tests`` (n,), ``errors`` (4, n) of ``ERRORS``, ``kinds`` (9, n) and
    ``sizes`` (4, n) for ``features.similarity``, ``sources``, ``sweeps`` and ``layouts`` (n,) as
    numbers, ``shares`` (11, n) of each predicted step by ``PARTS``, ``tflops`` (n,).
    """

    def __init__(self, cells: Sequence[Sequence[str]]) -> None:
        """Of runs, each with the cells of ``COLUMNS``."""
        if not cells:
            raise ValueError("a table of residuals needs rows")
        place = {name: number for number, name in enumerate(COLUMNS)}
        residual, own = place["log_residual"], place["id"]
        rows = sorted(cells, key=lambda row: (float(row[residual]), row[own]))
        columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        columns["moe"] = tuple(str(bool(int(cell))) for cell in columns["moe"])
        self._columns = columns
        self.ids = frozenset(columns["id"])
        self.residuals = self._numbers("log_residual")
        self.blind_tests = np.array([int(cell) for cell in columns["blind_test"]])
        self.errors = np.array([self._numbers(name) for name in ERRORS])
        codes, self._vocabulary = [], list[dict[str, int]]()
        for name in KINDS:
            known = {kind: number for number, kind in enumerate(dict.fromkeys(columns[name]))}
            codes.append([known[kind] for kind in columns[name]])
            self._vocabulary.append(known)
        # Row after row in memory: each prediction is compared with all of every row.
        self.kinds = np.array(codes, dtype=np.int64)
        sizes = zip(*(map(float, columns[name]) for name in SIZES), strict=True)
        self.sizes = np.ascontiguousarray(np.array([distances(*each) for each in sizes]).T)
        self._unlike: dict[tuple[str, ...], NDArray[np.float64]] = {}
        pairs = set(zip(columns["gpu"], columns["source"], strict=True))
        self._publications = Counter(gpu for gpu, _ in pairs)
        self.sources = numbered(columns["source"])

    def _numbers(self, name: str) -> NDArray[np.float64]:
        return np.array([float(cell) for cell in self._columns[name]])

    @functools.cached_property
    def sweeps(self) -> NDArray[np.int64]:
        pairs = zip(self._columns["source"], self._columns["sweep"], strict=True)
        return numbered([f"{source}: {sweep}" for source, sweep in pairs])

    @functools.cached_property
    def layouts(self) -> NDArray[np.int64]:
        return numbered(self._columns["layout"])

    @functools.cached_property
    def shares(self) -> NDArray[np.float64]:
        return np.array([self._numbers(name) for name in PARTS])

    @functools.cached_property
    def tflops(self) -> NDArray[np.float64]:
        return self._numbers("tflops")

    @property
    def clusters(self) -> NDArray[np.int64]:
        """Each run's kind of cluster as a number, (n,): GPU and fabric."""
        pairs = zip(self.column("gpu"), self.column("fabric"), strict=True)
        return numbered([f"{gpu} {fabric}" for gpu, fabric in pairs])

    def column(self, kind: str) -> NDArray[np.int64]:
        """Each run's value of one of ``KINDS`` as a number, (n,)."""
        column: NDArray[np.int64] = self.kinds[list(KINDS).index(kind)]
        return column

    def publications(self, gpu: str) -> int:
        """How many sources have runs on this GPU."""
        return self._publications.get(gpu, 0)

    @functools.cached_property
    def even(self) -> NDArray[np.float64]:
        """Weights (n,) by which all sources count the same."""
        return evenly(self.sources, np.ones(len(self.sources), dtype=np.bool_))

    def near(self, features: Features) -> NDArray[np.float64]:
        """``features.similarity`` of every run to a prediction, (n,)."""
        kinds = kinds_of(features)
        if kinds not in self._unlike:
            # Recipes of one search are of the same kinds.
            self._unlike[kinds] = unlike(self.kinds, self.codes(features))
        return similarity(self._unlike[kinds], self.sizes, np.array([sizes_of(features)]).T)

    def codes(self, features: Features) -> NDArray[np.int64]:
        """``kinds_of`` as the table numbers them, (9, 1); -1 for what it has not seen."""
        pairs = zip(self._vocabulary, kinds_of(features), strict=True)
        return np.array([[known.get(kind, -1)] for known, kind in pairs], dtype=np.int64)


def numbered(labels: Sequence[str]) -> NDArray[np.int64]:
    """Equal labels, equal numbers: each label's place in alphabetical order."""
    place = {label: number for number, label in enumerate(sorted(set(labels)))}
    return np.array([place[label] for label in labels], dtype=np.int64)


@functools.cache
def published_residuals() -> ResidualTable:
    """The table that ships with the project, read once per process."""
    return read_table(RESIDUALS.read_text(encoding="utf-8"))


def read_table(text: str) -> ResidualTable:
    """The table that ``table_text`` wrote.

    Raises:
        ValueError, KeyError, TypeError: when it did not.
    """
    _, rows = read_headed_csv(text, "residuals")
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise ValueError(f"columns {rows.fieldnames} instead of {', '.join(COLUMNS)}")
    return ResidualTable(list(rows.reader))


def table_text(rows: Sequence[Residual], provenance: dict[str, Any]) -> str:
    """The table as a file: ``provenance`` as its header, one line per run."""
    lines = []
    for row in rows:
        cells: dict[str, Any] = {
            "id": row.id,
            "source": row.source,
            "sweep": row.sweep,
            "layout": row.layout,
            "blind_test": row.blind_test,
            **asdict(row.features),
            **{part: f"{row.shares.get(part, 0.0):.4g}" for part in PARTS},
            "tflops": f"{row.tflops:.5g}",
            "log_residual": f"{row.log_residual:.5f}",
        }
        cells["moe"] = int(row.features.moe)
        cells["layer_s"] = f"{row.features.layer_s:.4g}"
        for name in ("communication_share", *ERRORS):
            cells[name] = f"{cells[name]:.4f}"
        lines.append(cells)
    return headed_csv(provenance, COLUMNS, lines)


# Every publication, weighing the same, adds this much weight however far it is, so that where
# nothing is near the interval is that of any publication.
_ANYTHING_WEIGHT = 2.0


def source_balanced(
    similarity: NDArray[np.float64],
    sources: NDArray[np.int64],
    even: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Weights of runs from their similarities to a prediction, and how novel that is.

    Runs of one publication share a machine, a code base and its reader's assumptions, so they
    are together worth at most one independent run: with summed similarity ``W`` they weigh
    ``W / (1 + W)`` (the design effect of fully correlated clusters, Kish 1965, section 5.4). A
    run with no similarity at all (left out) weighs nothing.

    Args:
        similarity: (n,), 0 to 1.
        sources: (n,), each run's source as a number.
        even: ``evenly`` of those runs that have a similarity, for whoever has it.

    Returns:
        Weights (n,) that sum to one, and the novelty: 0 with many sources near, 1 with none.
    """
    per_source = np.bincount(sources, similarity)
    near = similarity / (1 + per_source)[sources]
    mass = float(near.sum())
    if even is None:
        even = evenly(sources, similarity > 0)
    weights = near + _ANYTHING_WEIGHT * even
    return weights / weights.sum(), _ANYTHING_WEIGHT / (_ANYTHING_WEIGHT + mass)


def evenly(sources: NDArray[np.int64], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights (n,) of the runs that are ``present``, which sum to one: every source's the same."""
    runs = np.bincount(sources, present)[sources]
    weights = np.divide(present, runs, out=np.zeros(len(sources)), where=runs > 0)
    weights /= weights.sum()
    return weights


def quantiles(
    ascending: NDArray[np.float64], weights: NDArray[np.float64], probabilities: list[float]
) -> list[float]:
    """Weighted quantiles of ``ascending`` values, linear between the middles of their weights."""
    middles = np.cumsum(weights) - weights / 2
    return [float(value) for value in np.interp(probabilities, middles, ascending)]
