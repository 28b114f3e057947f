"""The residuals of published runs: what each prediction was, and how far off.

The file is written by ``trainscout residuals`` and says so in its header, YAML behind
``#``, together with what was calibrated on it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.io.csv_files import headed_csv, read_headed_csv
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.features import (
    KINDS,
    Features,
    kinds_of,
    sizes_of,
)

RESIDUALS = Path(__file__).with_name("residuals.csv")
DEGREES = ("tp", "pp", "cp", "ep", "vpp", "micro_batch")
SWITCHES = (
    "recompute",
    "sp",
    "zero_stage",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
)
_COLUMNS = (
    "id",
    "source",
    "sweep",
    *(field.name for field in fields(Features)),
    *DEGREES,
    *SWITCHES,
    "log_residual",
)


@dataclass(frozen=True)
class Residual:
    """One measured run beside its prediction.

    ``source`` is its publication, ``sweep`` names runs that did the same work in other layouts.
    ``log_residual`` is the natural logarithm of measured over predicted step time.
    """

    id: str
    source: str
    sweep: str
    features: Features
    recipe: Recipe
    log_residual: float


@dataclass(frozen=True)
class Tuning:
    """What is calibrated, so that intervals hold what they say (``coverage.calibrate``).

    A level of 80 % cuts ``tail_factor`` times 10 % from each end of the neighbours' residuals.
    ``host_error``: typical relative error of the time waited for the host. ``kernel_error``: how
    much of the typical error of a GEMM's price a step has. ``new_gpu``: how far, as a logarithm,
    an interval reaches at least to either side of its middle on a GPU without runs.
    ``new_framework``: how much wider an interval is of software without runs.
    """

    tail_factor: float = 1.0
    host_error: float = 0.0
    kernel_error: float = 1.0
    new_gpu: float = 0.0
    new_framework: float = 1.0


class ResidualTable:
    """Residuals as columns, ascending by residual, and the ``ids`` of their runs.

    ``residuals``, ``kernel_errors`` and ``host_shares`` (n,), ``kinds`` (8, n) and ``sizes``
    (4, n) for ``features.similarity``, ``sources`` and ``sweeps`` (n,) as numbers, ``doublings``
    (6, n) the logarithms to base two of the recipes' degrees, ``switches`` (6, n) their switches
    as numbers.
    """

    def __init__(self, rows: Sequence[Residual], tuning: Tuning) -> None:
        if not rows:
            raise ValueError("a table of residuals needs rows")
        rows = sorted(rows, key=lambda row: (row.log_residual, row.id))
        self.tuning = tuning
        self.ids = frozenset(row.id for row in rows)
        self.residuals = np.array([row.log_residual for row in rows])
        self._vocabulary: tuple[dict[str, int], ...] = tuple({} for _ in KINDS)
        codes = [
            [
                known.setdefault(kind, len(known))
                for known, kind in zip(self._vocabulary, kinds_of(row.features), strict=True)
            ]
            for row in rows
        ]
        # Row after row in memory: each prediction is compared with all of every row.
        self.kinds = np.ascontiguousarray(np.array(codes, dtype=np.int64).T)
        self.sizes = np.ascontiguousarray(np.array([sizes_of(row.features) for row in rows]).T)
        self.kernel_errors = np.array([row.features.kernel_error for row in rows])
        self.host_shares = np.array([row.features.host_share for row in rows])
        pairs = {(row.features.gpu, row.source) for row in rows}
        self._publications = Counter(gpu for gpu, _ in pairs)
        self.source_names = tuple(sorted({row.source for row in rows}))
        self.sources = numbered([row.source for row in rows])
        self.sweeps = numbered([f"{row.source}: {row.sweep}" for row in rows])
        self.doublings = np.array([doublings_of(row.recipe) for row in rows]).T
        self.switches = np.array(
            [numbered([str(getattr(row.recipe, name)) for row in rows]) for name in SWITCHES]
        )

    @property
    def gpus(self) -> NDArray[np.int64]:
        """Each run's GPU as a number, (n,)."""
        return self._column("gpu")

    @property
    def architectures(self) -> NDArray[np.int64]:
        """Each run's GPU architecture as a number, (n,)."""
        return self._column("architecture")

    @property
    def frameworks(self) -> NDArray[np.int64]:
        """Each run's framework as a number, (n,)."""
        return self._column("framework")

    @property
    def clusters(self) -> NDArray[np.int64]:
        """Each run's kind of cluster as a number, (n,): GPU and fabric."""
        return numbered(
            [
                f"{gpu} {fabric}"
                for gpu, fabric in zip(self.gpus, self._column("fabric"), strict=True)
            ]
        )

    def _column(self, kind: str) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.kinds[list(KINDS).index(kind)]
        return column

    def publications(self, gpu: str) -> int:
        """How many sources have runs on this GPU."""
        return self._publications.get(gpu, 0)

    def knows(self, kind: str, value: str) -> bool:
        """Whether a run has this value of one of ``KINDS``."""
        return value in self._vocabulary[list(KINDS).index(kind)]

    def codes(self, features: Features) -> NDArray[np.int64]:
        """``kinds_of`` as the table numbers them, (8, 1); -1 for what it has not seen."""
        pairs = zip(self._vocabulary, kinds_of(features), strict=True)
        return np.array([[known.get(kind, -1)] for known, kind in pairs], dtype=np.int64)


def doublings_of(recipe: Recipe) -> tuple[float, ...]:
    """Logarithms to base two of a recipe's degrees."""
    return tuple(_log2(getattr(recipe, name)) for name in DEGREES)


@functools.cache
def _log2(degree: int) -> float:
    return float(np.log2(degree))


def numbered(labels: Sequence[str]) -> NDArray[np.int64]:
    """Equal labels, equal numbers: each label's place in alphabetical order."""
    return np.unique(np.array(labels), return_inverse=True)[1].astype(np.int64)


@functools.cache
def published_residuals() -> ResidualTable:
    """The table that ships with the project, read once per process."""
    return read_table(RESIDUALS.read_text(encoding="utf-8"))


def read_table(text: str) -> ResidualTable:
    """The table that ``table_text`` wrote.

    Raises:
        ValueError, KeyError, TypeError: when it did not.
    """
    header, rows = read_headed_csv(text, "residuals")
    return ResidualTable([_residual(cells) for cells in rows], Tuning(**header["tuning"]))


def table_text(rows: Sequence[Residual], tuning: Tuning, provenance: dict[str, Any]) -> str:
    """The table as a file: ``provenance`` and ``tuning`` as its header, one line per run."""
    lines = []
    for row in rows:
        cells: dict[str, Any] = {
            "id": row.id,
            "source": row.source,
            "sweep": row.sweep,
            **asdict(row.features),
            **{name: getattr(row.recipe, name) for name in (*DEGREES, *SWITCHES)},
            "log_residual": f"{row.log_residual:.5f}",
        }
        cells["moe"] = int(row.features.moe)
        cells["layer_s"] = f"{row.features.layer_s:.4g}"
        cells["communication_share"] = f"{row.features.communication_share:.4f}"
        cells["host_share"] = f"{row.features.host_share:.4f}"
        cells["kernel_error"] = f"{row.features.kernel_error:.4f}"
        for name in SWITCHES:
            cells[name] = int(cells[name]) if isinstance(cells[name], bool) else cells[name]
        lines.append(cells)
    return headed_csv({**provenance, "tuning": asdict(tuning)}, _COLUMNS, lines)


def _residual(cells: dict[str, str]) -> Residual:
    features = Features(
        gpu=cells["gpu"],
        architecture=cells["architecture"],
        bits=int(cells["bits"]),
        moe=bool(int(cells["moe"])),
        num_gpus=int(cells["num_gpus"]),
        attention=cells["attention"],
        fusion=cells["fusion"],
        framework=cells["framework"],
        fabric=cells["fabric"],
        layer_s=float(cells["layer_s"]),
        communication_share=float(cells["communication_share"]),
        host_share=float(cells["host_share"]),
        kernel_error=float(cells["kernel_error"]),
    )
    recipe: dict[str, Any] = {name: int(cells[name]) for name in (*DEGREES, "zero_stage")}
    recipe["recompute"] = cells["recompute"]
    for name in SWITCHES:
        if name not in recipe:
            recipe[name] = bool(int(cells[name]))
    return Residual(
        id=cells["id"],
        source=cells["source"],
        sweep=cells["sweep"],
        features=features,
        recipe=Recipe(**recipe),
        log_residual=float(cells["log_residual"]),
    )
