"""Redo the error bars from measured runs: ``trainscout residuals --help``.

To be run whenever predictions have changed: the table it writes is what error bars come from.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty import table
from trainscout.simulators.predictor.uncertainty.fabric import on_slow_network
from trainscout.simulators.predictor.uncertainty.features import features_of

from .published.jobs.jobs import read_curves, shipped_declarations
from .published.layouts import sweep_of
from .published.page.later import Blind, read_blind
from .published.published import BLIND_TESTS, PUBLISHED_RUNS, add_output
from .published.reading.groups import independent_source
from .published.reading.rows import TRUSTED, read_rows
from .published.regularity import mark_extrapolated
from .published.replay import Result, replay_with_progress
from .uncertainty.coverage import LEFT_OUT, Coverage, coverage
from .uncertainty.order import Order, order


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    check_output("--output", options.output, [])
    residuals = list(residuals_of(_predicted(PUBLISHED_RUNS)))
    for number, test in enumerate(BLIND_TESTS, 1):
        residuals += residuals_of(_predicted(test.runs), number, read_blind(test.predictions))
    # Of what is written, which is rounded.
    written = table.read_table(table.table_text(residuals, {}))
    found = coverage(written)
    provenance = _provenance(found, order(written))
    write_output("--output", options.output, table.table_text(residuals, provenance))
    show_text(_format_coverage(found, options.output))
    return OK


def _predicted(runs: Path) -> tuple[Result, ...]:
    rows = mark_extrapolated(read_rows(runs))
    declarations = shipped_declarations()
    declarations = replace(declarations, curves=read_curves(rows, runs.parent))
    return replay_with_progress(rows, declarations, Bare())


class Bare(ReplaySimulator):
    """The replay without the error bars that are yet to be made."""

    simulate = ReplaySimulator.without_error_bar


def residuals_of(
    results: Sequence[Result], blind_test: int = 0, first: Mapping[str, Blind] | None = None
) -> tuple[table.Residual, ...]:
    """The residual of every trusted row with a measured and a predicted step time.

    Of a blind test that of its ``first`` predictions, without what was refused then. Extrapolated
    rows are no measurements.
    """
    residuals: list[table.Residual] = []
    simulator = ReplaySimulator()
    sweeps: dict[object, str] = {}
    layouts: dict[Recipe, int] = {}
    for result in results:
        job, prediction, measured_s = result.job, result.prediction, result.measured_s
        if result.row.quality not in TRUSTED or result.row.extrapolated:
            continue
        if job is None or prediction is None or measured_s is None:
            continue
        now_s = prediction.step_time_s
        times = (now_s,) if first is None else first[result.row.id].times
        if times is None:
            continue
        slow = on_slow_network(job)
        slow_s = 0.0 if slow is None else simulator.step_time_s(slow)
        residuals.append(
            table.Residual(
                id=result.row.id,
                source=independent_source(result.row),
                sweep=sweeps.setdefault(sweep_of(result), f"{blind_test}.{len(sweeps) + 1}"),
                layout=layouts.setdefault(job.recipe, len(layouts) + 1),
                blind_test=blind_test,
                features=features_of(job, now_s, prediction.breakdown_s, slow_s),
                shares={part: s / now_s for part, s in prediction.breakdown_s.items()},
                tflops=step_flops(job).model / job.world_size / times[0] / 1e12,
                log_residual=math.log(measured_s / times[0]),
            )
        )
    return tuple(residuals)


def _provenance(found: Coverage, of_layouts: Order) -> dict[str, Any]:
    return {
        "what": "measured over predicted step times of published runs, as natural logarithms",
        "made_by": "trainscout residuals",
        "runs": format_origin(PUBLISHED_RUNS),
        "blind_tests": [format_origin(test.runs) for test in BLIND_TESTS],
        "coverage": {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in found.to_dict().items()
        }
        | {"order": of_layouts.to_dict()},
    }


def format_origin(runs: Path) -> str:
    """Which table of measured runs something was made of, and which of its rows."""
    digest = hashlib.sha256(runs.read_bytes()).hexdigest()[:16]
    return f"{runs.name}, sha256 {digest}..., grades {' and '.join(TRUSTED)}"


def _format_coverage(found: Coverage, output: Path) -> str:
    held = ",\n".join(f"{share:.1%} of {LEFT_OUT[name]}" for name, share in found.inside.items())
    return (
        f"{found.n} runs of blind tests in {found.publications} publications. The "
        f"{found.level:.0%} interval holds, each left out (mean over publications),\n{held}.\n"
        f"Its high end is {found.width:.0%} above its low end in the median, "
        f"{found.width_in_view:.0%} for runs in view. Written to {output}.\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "residuals",
        "Predict the published runs and those of blind tests, and write the table that error "
        "bars come from.",
        "trainscout residuals\ntrainscout residuals --output residuals.csv",
    )
    add_output(parser, table.RESIDUALS)
    return parser
