"""Against fantasy: the fastest published runs by kind, and what choosing by prediction costs.

A search reports what is predicted most optimistically of all. Two things keep it honest: the
fastest run of its kind that anybody published, and how much slower than predicted *chosen*
published runs were than others beside them, which reports say (no error bar counts it: its
uncertainty, 1.8 %, would widen one by 0.2 %). ``trainscout fastest`` writes the file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.answer.flops import layer_flops
from trainscout.simulators.predictor.io.csv_files import headed_csv, read_headed_csv
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.training import PRECISION_BITS

FASTEST = Path(__file__).with_name("fastest.csv")
FASTER = 0.05
"""By what fraction of MFU an answer may exceed the best published run of its kind unremarked."""
_LONG_TOKENS = 16_384
# Billions of parameters that a token passes: larger models have larger matrices.
_SIZES = (3.0, 15.0, 50.0, 200.0)
# GPUs of one architecture whose peaks are as near do as much with one MFU.
_SAME_PEAK = 0.2


@dataclass(frozen=True)
class Selection:
    """What choosing costs, as logarithms of measured over predicted step time: how much more a
    predicted-best run was than the runs beside it (``shift``, no less than 0), and the standard
    error of that over ``publications`` with ``sweeps`` of several layouts."""

    shift: float = 0.0
    error: float = 0.0
    publications: int = 0
    sweeps: int = 0


@dataclass(frozen=True)
class Kind:
    """What makes the utilisation of two runs comparable. ``size`` counts the bounds (3, 15, 50,
    200 billion) that the parameters a token passes exceed; ``long``: sequences beyond 16k."""

    gpu: str
    bits: str
    experts: bool
    size: int
    long: bool
    framework: str


@dataclass(frozen=True)
class FastRun:
    """The published run of a kind with the highest MFU (a fraction of the dense peak, model FLOPs
    with full attention); ``architecture`` and ``peak_tflops`` are its GPU's."""

    kind: Kind
    architecture: str
    peak_tflops: float
    mfu: float
    id: str
    source: str
    model: str
    num_gpus: int


@dataclass(frozen=True)
class Fastest:
    """The file: what choosing costs, and the fastest runs."""

    selection: Selection
    runs: tuple[FastRun, ...]

    def like(self, job: Job) -> FastRun | None:
        """The fastest run of a job's kind: on its GPU, else one of its architecture that is as
        fast; under its framework, else any; None where nothing like it was published."""
        kind, peak = kind_of(job), job.gpu.peak(job.precision) / 1e12
        like = [
            run
            for run in self.runs
            if (run.kind.bits, run.kind.experts, run.kind.size, run.kind.long)
            == (kind.bits, kind.experts, kind.size, kind.long)
        ]
        near = [
            run
            for run in like
            if run.architecture == job.gpu.architecture.name
            and abs(run.peak_tflops / peak - 1) <= _SAME_PEAK
        ]
        comparable = [run for run in like if run.kind.gpu == kind.gpu] or near
        same = [run for run in comparable if run.kind.framework == kind.framework]
        return max(same or comparable, key=lambda run: run.mfu, default=None)


def kind_of(job: Job) -> Kind:
    """What a job's utilisation is compared within."""
    bits = PRECISION_BITS[job.precision]
    billions = _passed_parameters(job.model) / 1e9
    return Kind(
        gpu=job.gpu.name,
        bits=f"{bits}-bit" if bits <= 16 else job.precision,
        experts=job.model.moe is not None,
        size=sum(billions > bound for bound in _SIZES),
        long=job.sequence_length > _LONG_TOKENS,
        framework=job.framework.software,
    )


def _passed_parameters(model: Model) -> float:
    """Parameters that a token is multiplied with in one forward pass."""
    layers = sum(layer_flops(model, 0, layer) for layer in model.pattern)
    return layers / 2 + model.hidden_size * model.vocab_size


@dataclass(frozen=True)
class Claim:
    """What a prediction says of a job's MFU, beside the fastest published run of its kind, None
    where there is none."""

    mfu: float
    published: FastRun | None

    @property
    def faster(self) -> float | None:
        """By what fraction the published run's utilisation is exceeded."""
        return None if self.published is None else self.mfu / self.published.mfu - 1

    @property
    def measure_first(self) -> bool:
        """Whether nobody published anything nearly as fast."""
        return self.faster is not None and self.faster > FASTER


def claim(job: Job, mfu: float) -> Claim:
    """A job's predicted MFU beside what was published."""
    return Claim(mfu, published_fastest().like(job))


@functools.cache
def published_fastest() -> Fastest:
    """The file that ships with the project, read once per process."""
    return read_fastest(FASTEST.read_text(encoding="utf-8"))


def read_fastest(text: str) -> Fastest:
    """What ``fastest_text`` wrote.

    Raises:
        ValueError, KeyError, TypeError: when it did not.
    """
    header, rows = read_headed_csv(text, "fastest")
    return Fastest(Selection(**header["selection"]), tuple(_run(cells) for cells in rows))


def fastest_text(found: Fastest, provenance: dict[str, Any]) -> str:
    """The file: provenance and selection as its header, one line per run."""
    rows = []
    for run in found.runs:
        cells = {**asdict(run.kind), **{name: getattr(run, name) for name in _names(FastRun)[1:]}}
        cells |= {name: int(cells[name]) for name in ("experts", "long")}
        rows.append({**cells, "peak_tflops": f"{run.peak_tflops:g}", "mfu": f"{run.mfu:.4f}"})
    header = {**provenance, "selection": asdict(found.selection)}
    return headed_csv(header, [*_names(Kind), *_names(FastRun)[1:]], rows)


def _names(cls: type) -> Sequence[str]:
    return [field.name for field in fields(cls)]


_BY_TYPE: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda cell: bool(int(cell)),
}


def _run(cells: Mapping[str, str]) -> FastRun:
    return FastRun(Kind(**_read(Kind, cells)), **_read(FastRun, cells))


def _read(cls: type, cells: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a dataclass that cells have."""
    own = [field for field in fields(cls) if field.name in cells]
    return {field.name: _BY_TYPE[str(field.type)](cells[field.name]) for field in own}
