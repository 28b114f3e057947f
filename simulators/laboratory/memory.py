"""How likely predicted memory suffices: ``trainscout memory --help``.

To be run whenever predictions of memory have changed: the table it writes is what the bands come
from. Three kinds of evidence enter: memory that was measured says how far off the prediction was,
a run that ran that it was at most so far off, a layout that failed that it was at least so far off
(``_FOR_MEMORY`` of them), unless something else explains its failure. That a run ran says so only
where its publication lists what failed: others print nothing else. Runs of blind tests are among
them, which say what a stranger gets.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from trainscout.simulators.predictor.collectives.price import open_connections
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.memory import footprint
from trainscout.simulators.predictor.memory.bands import (
    BANDS,
    LEAST_FITS,
    MOST_NO,
    SPREAD,
    Spread,
    band_of,
    below_share,
)
from trainscout.simulators.predictor.workload.communicators import paired
from trainscout.simulators.predictor.workload.megatron import build_workload

from .published.jobs.jobs import Declarations, job_of, read_curves, shipped_declarations
from .published.jobs.outcome import NotReplayable
from .published.measured import measured_memory, predicted_memory_bytes, printed_stage
from .published.published import BLIND_TESTS, DATA, PUBLISHED_RUNS, add_output
from .published.reading.groups import source_group
from .published.reading.rows import TRUSTED, Row, read_rows
from .published.regularity import mark_extrapolated

FAILED_LAYOUTS = DATA / "failed_layouts.csv"
SWEPT_RUNS = DATA / "ultrascale_runs.csv"
_LAYOUT = {"num_gpus", "tp", "pp", "dp", "cp", "ep", "micro_batch", "recompute"}
# What besides must be equal for two rows to be one layout; a blank degree is 1.
_TRAINING = {"gpu", "model", "seq_len", "global_batch", "dist_optimizer", "dtype"}
# Layouts fail for other reasons too, and what ran may have run otherwise than it says.
_FOR_MEMORY = 0.95
# Needs farther from the capacity than this, as a logarithm, say nothing of how predictions err.
_NEAR = 0.4
# Runs of one publication share software and machine: however many, they weigh as one independent
# run, and one alone, which may have run otherwise than it says, as half of one.
_HALF_WEIGHT_RUNS = 1
# Before any evidence: mechanisms have no bias but for some 5 %, and err by 10 %, within a factor.
_BEFORE = Spread(0.0, 0.1)
_BIAS_WITHIN, _SCALE_WITHIN = 0.05, 0.5
_BIASES = np.linspace(-0.2, 0.2, 81)
_SCALES = np.geomspace(0.02, 0.4, 61)
_QUANTILES = np.array([0.2, 0.5, LEAST_FITS, 0.9, 1 - MOST_NO])


@dataclass(frozen=True)
class Evidence:
    """One run or layout: ``off`` is the logarithm of measured over predicted memory, None where
    none was measured; ``room`` that of the capacity over the predicted need."""

    publication: str
    software: str
    off: float | None
    room: float
    failed: bool = False

    @property
    def kind(self) -> str:
        return "measured" if self.off is not None else "failed" if self.failed else "ran"


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    check_output("--output", options.output, [*options.runs, options.failed])
    declarations = shipped_declarations()
    failed, ran, found = read_rows(options.failed), list[Row](), list[Evidence]()
    for path in options.runs:
        rows = read_rows(path)
        ran += rows
        found += evidence(rows, replace(declarations, curves=read_curves(rows, path.parent)))
    found += evidence(failed_for_memory(failed, ran), declarations, failed=True)
    spreads = fit(found)
    write_output(
        "--output", options.output, _text(spreads, found, [*options.runs, options.failed])
    )
    show_text(bands(found) + f"Written to {options.output}.\n")
    return OK


def failed_for_memory(failed: Sequence[Row], ran: Iterable[Row]) -> list[Row]:
    """Layouts whose failure nothing but memory explains: not those that ran too in the same
    publication, nor those with more pipeline stages than layers."""
    succeeded = {_question(row) for row in ran}
    return [
        row
        for row in failed
        if _question(row) not in succeeded and (row.pp or 1) <= (row.num_layers or math.inf)
    ]


def _question(row: Row) -> tuple[object, ...]:
    return source_group(row), *(getattr(row, name) or 1 for name in sorted(_LAYOUT | _TRAINING))


def evidence(
    rows: Sequence[Row], declarations: Declarations, *, failed: bool = False
) -> list[Evidence]:
    """What the trusted rows say; those that leave open what was recomputed say nothing."""
    found = []
    for row in mark_extrapolated(rows):
        outcome = job_of(row, declarations)
        # A layout that was inferred, perhaps from the memory itself, is no evidence about it.
        inferred = _LAYOUT & row.inferred
        untrusted = row.quality not in TRUSTED or row.extrapolated or inferred
        if untrusted or isinstance(outcome, NotReplayable):
            continue
        job = outcome.job
        workload = build_workload(job)
        groups = workload.communicators.values()
        connections = open_connections(groups, paired(job), job.gpu, job.network)
        memory = footprint(job, workload, connections)
        used = memory.capacity_bytes - memory.headroom_bytes
        off, measured = None, measured_memory(row)
        # What is reserved exceeds what is needed where segments do not expand, and so does what
        # the device shows: those runs just ran.
        needed = {"allocated"} | ({"reserved"} if job.framework.expandable_segments else set())
        if measured is not None and measured[0] in needed:
            predicted = predicted_memory_bytes(measured[0], memory, printed_stage(row))
            off = math.log(measured[1] / predicted)
        if off is None and (outcome.heavier or outcome.picking) and not failed:
            continue
        room = math.log(memory.capacity_bytes / used)
        found.append(Evidence(source_group(row), job.framework.name, off, room, failed))
    return found


def fit(found: Sequence[Evidence]) -> dict[str, Spread]:
    """The spread of each software, and of any: the middle of what the evidence leaves likely.

    Software is believed to be like any, until evidence of its own says otherwise.
    """
    found = telling(found)
    spreads = {"any": _middle(_likelihood(found), _BEFORE)}
    for software in sorted({each.software for each in found}):
        own = [each for each in found if each.software == software]
        spreads[software] = _middle(_likelihood(own), spreads["any"])
    return spreads


def telling(found: Sequence[Evidence]) -> list[Evidence]:
    """Without runs that nobody would have published had they not run."""
    complete = {each.publication for each in found if each.failed}
    return [each for each in found if each.kind != "ran" or each.publication in complete]


Grid = NDArray[np.float64]


def _likelihood(found: Iterable[Evidence]) -> Grid:
    """Logarithm over the grid of biases and scales, shape (biases, scales)."""
    groups: dict[tuple[str, str], list[Evidence]] = {}
    for each in found:
        if each.off is not None or abs(each.room) < _NEAR:
            groups.setdefault((each.publication, each.kind), []).append(each)
    total = np.zeros((len(_BIASES), len(_SCALES)))
    for (_, kind), members in groups.items():
        values = tuple(each.room if each.off is None else each.off for each in members)
        total += _mean_log(kind, values) * len(members) / (len(members) + _HALF_WEIGHT_RUNS)
    return total


@functools.lru_cache(maxsize=1024)
def _mean_log(kind: str, offs: tuple[float, ...]) -> Grid:
    """The mean over runs of one kind, with their logarithms of need over prediction or room."""
    distances = (np.array(offs)[:, None, None] - _BIASES[:, None]) / _SCALES
    if kind == "measured":
        # The density of Student's t with two degrees of freedom (``predictor.memory.bands``).
        likelihoods = (2 + distances**2) ** -1.5 / _SCALES
    else:
        below = below_share(distances)
        likelihoods = _FOR_MEMORY * (below if kind == "ran" else 1 - below) + 1 - _FOR_MEMORY
    mean: Grid = np.log(likelihoods).mean(axis=0)
    return mean


def _middle(likelihood: Grid, before: Spread) -> Spread:
    """The mean bias and scale under the likelihood and what was believed before."""
    bias = (_BIASES - before.bias) / _BIAS_WITHIN
    scale = np.log(_SCALES / before.scale) / _SCALE_WITHIN
    log = likelihood - 0.5 * bias[:, None] ** 2 - 0.5 * scale**2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    return Spread(
        round(float((weight.sum(axis=1) * _BIASES).sum()), 3),
        round(float(np.exp((weight.sum(axis=0) * np.log(_SCALES)).sum())), 3),
    )


def bands(found: Sequence[Evidence]) -> str:
    """Runs by publication and band, each publication with spreads that never saw it; and how much
    of what it measured is below quantiles of these, publications alike."""
    lines = [f"{'each publication left out':36}" + "".join(f"{band:>8}" for band in BANDS)]
    total, below = dict.fromkeys(BANDS, 0), list[NDArray[np.float64]]()
    for publication in sorted({each.publication for each in found}):
        spreads = fit([each for each in found if each.publication != publication])
        own = [each for each in found if each.publication == publication]
        of = [spreads.get(each.software, spreads["any"]) for each in own]
        for failed in (False, True):
            counts = dict.fromkeys(BANDS, 0)
            for each, spread in zip(own, of, strict=True):
                if each.failed == failed:
                    counts[band_of(spread.probability(1.0, math.exp(each.room)))] += 1
            if sum(counts.values()):
                name = f"{publication}, failed" if failed else publication
                lines.append(f"{name:36}" + "".join(f"{counts[band]:8}" for band in BANDS))
            if not failed:
                total = {band: total[band] + counts[band] for band in BANDS}
        shares = [
            spread.probability(1.0, math.exp(each.off))
            for each, spread in zip(own, of, strict=True)
            if each.off is not None
        ]
        if shares:
            below.append((np.array(shares)[:, None] <= _QUANTILES).mean(axis=0))
    lines.append(f"{'all that ran':36}" + "".join(f"{total[band]:8}" for band in BANDS))
    if below:
        held = (
            f"{share:.0%} below {q:.0%}"
            for share, q in zip(np.mean(below, 0), _QUANTILES, strict=True)
        )
        lines.append(f"measured, {len(below)} publications alike: {', '.join(held)}")
    return "\n".join(lines) + "\n"


def _text(spreads: dict[str, Spread], found: Sequence[Evidence], files: Sequence[Path]) -> str:
    software = {}
    for name, each in spreads.items():
        kinds = [one.kind for one in telling(found) if name in ("any", one.software)]
        rows = {kind: kinds.count(kind) for kind in ("measured", "ran", "failed")}
        software[name] = {"bias": each.bias, "scale": each.scale, "rows": rows}
    return (
        "# Logarithm of measured over predicted memory, by software; any: of all of them, and of\n"
        "# software without rows. Made by trainscout memory of\n"
        f"# {', '.join(file.name for file in files)}.\n"
        + yaml.safe_dump({"software": software}, sort_keys=False, default_flow_style=None)
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "memory",
        "Fit how far off predicted memory is, by software, to runs that ran and layouts that "
        "failed; print the band of each, its publication left out.",
        "trainscout memory                         # the published rows\n"
        "trainscout memory ours.csv --output spread.yaml",
        "0 done; 1 an internal failure; 2 wrong input",
    )
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        default=[PUBLISHED_RUNS, SWEPT_RUNS, *(test.runs for test in BLIND_TESTS)],
        help="CSVs of measured runs as for trainscout validate; default: those that ship",
    )
    parser.add_argument(
        "--failed",
        type=Path,
        default=FAILED_LAYOUTS,
        help="CSV of layouts that failed, with the same columns; default: those that ship",
    )
    add_output(parser, SPREAD)
    return parser
