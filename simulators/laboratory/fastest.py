"""Redo what keeps answers from fantasy: ``trainscout fastest --help``."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

from trainscout.simulators.laboratory.published.groups import source_group
from trainscout.simulators.laboratory.published.jobs import shipped_declarations
from trainscout.simulators.laboratory.published.layouts import sweep_of
from trainscout.simulators.laboratory.published.published import add_runs
from trainscout.simulators.laboratory.published.regularity import mark_extrapolated
from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.laboratory.published.rows import TRUSTED, read_rows
from trainscout.simulators.laboratory.residuals import Bare
from trainscout.simulators.laboratory.uncertainty.selection import (
    effects,
    held_out,
    selection_of,
)
from trainscout.simulators.laboratory.validate import replay_with_progress
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.uncertainty.fastest import (
    FASTEST,
    Fastest,
    FastRun,
    Kind,
    fastest_text,
    kind_of,
)


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0, or 1 when no row tells a step time."""
    options = _parser().parse_args(arguments)
    check_output("--output", options.output, [options.runs])
    declared = shipped_declarations()
    rows = [row for row in mark_extrapolated(read_rows(options.runs)) if row.quality in TRUSTED]
    results = replay_with_progress([row for row in rows if not row.extrapolated], declared, Bare())
    results = tuple(result for result in results if result.error is not None)
    if not results:
        return FAILURE
    found = effects([_run(result) for result in results])
    digest = hashlib.sha256(options.runs.read_bytes()).hexdigest()[:16]
    provenance = {
        "what": "the published run with the highest MFU of each kind, and what choosing costs",
        "made_by": "trainscout fastest",
        "runs": f"{options.runs.name}, sha256 {digest}..., grades {' and '.join(TRUSTED)}",
    }
    selection = selection_of(found)
    text = fastest_text(Fastest(selection, fastest_runs(results)), provenance)
    write_output("--output", options.output, text)
    show_text(
        f"Choosing costs {selection.shift:.2%} (standard error {selection.error:.2%}, "
        f"{selection.sweeps} sweeps of {selection.publications} publications). "
        "Each publication, left out:\n"
    )
    for name, (told, own) in sorted(held_out(found).items()):
        show_text(f"  {name:32} told {told:+.1%}, its {len(found[name]):2} sweeps {own:+.1%}\n")
    show_text(f"Written to {options.output}.\n")
    return OK


def fastest_runs(results: Sequence[Result]) -> tuple[FastRun, ...]:
    """The measured run with the highest MFU of every kind, kinds in order."""
    best: dict[Kind, FastRun] = {}
    for result in results:
        job, measured_s = result.job, result.measured_s
        if job is None or measured_s is None:
            continue
        kind, peak = kind_of(job), job.gpu.peak(job.precision)
        run = FastRun(
            kind=kind,
            architecture=job.gpu.architecture.name,
            peak_tflops=peak / 1e12,
            mfu=step_flops(job).model / (measured_s * job.world_size * peak),
            id=result.row.id,
            source=result.row.source,
            model=result.row.model,
            num_gpus=job.world_size,
        )
        if kind not in best or run.mfu > best[kind].mfu:
            best[kind] = run
    return tuple(sorted(best.values(), key=lambda run: repr(run.kind)))


def _run(result: Result) -> tuple[str, object, object, float, float]:
    job, prediction, measured_s = result.job, result.prediction, result.measured_s
    if job is None or prediction is None or measured_s is None:
        raise AssertionError("a result with an error has them all")
    source = source_group(result.row)
    return source, sweep_of(result), job.recipe, prediction.step_time_s, measured_s


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "fastest",
        "Write the fastest published runs by kind (GPU, precision, size, framework), which an "
        "answer is held against, and how much slower than predicted chosen runs were than others.",
        "trainscout fastest                        # the published rows\n"
        "trainscout fastest ours.csv --output fastest.csv",
        "0 done; 1 no row tells a step time, or an internal failure; 2 wrong input",
    )
    add_runs(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=FASTEST,
        help="where to write; default: the table that searches use",
    )
    return parser
