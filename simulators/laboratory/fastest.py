"""Redo what keeps answers from fantasy: ``trainscout fastest --help``."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import median

import numpy as np

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.uncertainty.fastest import (
    FASTEST,
    Fastest,
    FastRun,
    Kind,
    Selection,
    fastest_text,
    kind_of,
)

from .published.jobs.jobs import shipped_declarations
from .published.layouts import sweep_of
from .published.published import add_output, add_runs
from .published.reading.groups import source_group
from .published.reading.rows import TRUSTED, read_rows
from .published.regularity import mark_extrapolated
from .published.replay import Result, replay_with_progress
from .residuals import Bare, format_origin


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0, or 1 when no row tells a step time."""
    options = _parser().parse_args(arguments)
    check_output("--output", options.output, [options.runs])
    declarations = shipped_declarations()
    rows = [row for row in mark_extrapolated(read_rows(options.runs)) if row.quality in TRUSTED]
    results = replay_with_progress(
        [row for row in rows if not row.extrapolated], declarations, Bare()
    )
    results = tuple(result for result in results if result.error is not None)
    if not results:
        return FAILURE
    found = effects([_run(result) for result in results])
    provenance = {
        "what": "the published run with the highest MFU of each kind, and what choosing costs",
        "made_by": "trainscout fastest",
        "runs": format_origin(options.runs),
    }
    selection = selection_of(found)
    text = fastest_text(Fastest(selection, fastest_runs(results)), provenance)
    write_output("--output", options.output, text)
    show_text(
        f"Choosing costs {selection.shift:.2%} (standard error {selection.error:.2%}, "
        f"{selection.sweeps} sweeps of {selection.publications} publications). "
        "Each publication, left out:\n"
    )
    for name, (others, own) in sorted(held_out(found).items()):
        show_text(f"  {name:32} told {others:+.1%}, its {len(found[name]):2} sweeps {own:+.1%}\n")
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
    add_output(parser, FASTEST)
    return parser


# Of a normal distribution: its standard deviation over its median absolute deviation.
_MAD = 1.4826


def effects(
    runs: Sequence[tuple[str, Hashable, Hashable, float, float]],
) -> dict[str, list[float]]:
    """By publication, for each sweep of two layouts or more: the logarithm of measured over
    predicted step time of the predicted-best layout, less the mean of that over all.

    Args:
        runs: publication, sweep, layout, predicted and measured seconds of each run.
    """
    sweeps: dict[tuple[str, Hashable], dict[Hashable, list[tuple[float, float]]]] = {}
    for publication, sweep, layout, predicted_s, measured_s in runs:
        layouts = sweeps.setdefault((publication, sweep), {})
        layouts.setdefault(layout, []).append((math.log(predicted_s), math.log(measured_s)))
    found: dict[str, list[float]] = defaultdict(list)
    for (publication, _), layouts in sweeps.items():
        if len(layouts) < 2:
            continue
        predicted, measured = np.array([np.mean(each, axis=0) for each in layouts.values()]).T
        residuals = measured - predicted
        found[publication].append(float(residuals[predicted.argmin()] - residuals.mean()))
    return dict(found)


def selection_of(found: Mapping[str, Sequence[float]]) -> Selection:
    """What choosing costs in a publication that is not among those found.

    Each publication is one observation, the mean of its sweeps; the next one is predicted to have
    their median, with its standard error by their median absolute deviation: one sweep whose
    software is predicted badly does not decide.
    """
    means = [float(np.mean(each)) for each in found.values()]
    if not means:
        return Selection()
    middle = median(means)
    spread = _MAD * median(abs(mean - middle) for mean in means)
    return Selection(
        shift=round(max(0.0, middle), 4),
        error=round(math.sqrt(math.pi / 2) * spread / math.sqrt(len(means)), 4),
        publications=len(means),
        sweeps=sum(map(len, found.values())),
    )


def held_out(found: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """For each publication the shift that the others tell, and what its own sweeps had."""
    return {
        name: (
            selection_of({other: each for other, each in found.items() if other != name}).shift,
            float(np.mean(own)),
        )
        for name, own in found.items()
    }
