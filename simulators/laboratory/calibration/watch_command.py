"""Whether runs are still as they were: ``trainscout calibrate watch --help``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from trainscout.reports.wording import format_seconds
from trainscout.simulators.laboratory.calibrate import add_sources, measured_runs
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.terminal import plain_table, show
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import read_calibration
from trainscout.simulators.predictor.uncertainty.factors import SHARES
from trainscout.simulators.predictor.uncertainty.interval import LEVEL
from trainscout.simulators.predictor.uncertainty.posterior import Vector

from .logs import RECENT
from .runs import MeasuredRun

Bar = tuple[float, float]
# Whatever moves does so by some tens of per cent.
_MOVED = 0.3
WHOLE = "whole steps"
CAUSES = {
    WHOLE: "another version of the software, lower clocks or less power",
    "memory_time": "slower memory, or kernels that are no longer fused",
    "node_time": "a degraded link inside a node",
    "network_time": "a degraded link, another placement or a busy fabric",
    "host_time": "a slower or busier host",
    "straggler_time": "a slow GPU",
}


@dataclass(frozen=True)
class Moved:
    """A factor that may have moved: by which ``factor``, and how probable it is among all."""

    name: str
    factor: float
    probability: float


def moved(excess: Vector, spreads: Vector, shares: Sequence[Sequence[float]]) -> tuple[Moved, ...]:
    """What would explain runs that took longer, the most probable first.

    Args:
        excess: (n,) logarithms of measured over expected times, ``spreads`` (n,) their standard
            deviations.
        shares: (n, 5) of every step, in the order of ``factors.SHARES``.
    """
    columns = np.column_stack((np.ones(len(excess)), np.array(shares)))
    found = []
    for name, column in zip((WHOLE, *SHARES), columns.T, strict=True):
        covariance = _MOVED**2 * np.outer(column, column) + np.diag(spreads**2)
        pull = np.linalg.solve(covariance, excess)
        density = -0.5 * float(excess @ pull) - 0.5 * float(np.linalg.slogdet(covariance)[1])
        found.append((density, name, _MOVED**2 * float(column @ pull)))
    best = max(found)[0]
    weights = [np.exp(density - best) for density, _, _ in found]
    ranked = sorted(zip(weights, found, strict=True), key=lambda pair: -pair[0])
    return tuple(
        Moved(name, float(np.exp(by)), float(weight / sum(weights)))
        for weight, (_, name, by) in ranked
    )


_EXPLANATIONS = 3
_LEAST_PROBABLE = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0 when all runs are inside their error bars, 1 when one is not."""
    options = _parser().parse_args(arguments)
    known = None if options.calibration is None else read_calibration(options.calibration)
    runs, _, notes = measured_runs(options, recent=True)
    if known is not None:
        for run in runs:
            known.check_gpu(run.job.gpu)
    simulator = ReplaySimulator(known)
    predictions = [simulator.simulate(run.job) for run in runs]
    shares = [simulator.with_shares(run.job)[1] for run in runs]
    bars = [each.interval_s or (0.0, math.inf) for each in predictions]
    outside = [
        not low <= run.measured_s <= high for run, (low, high) in zip(runs, bars, strict=True)
    ]
    lines = [f"{note}." for note in notes]
    if any(outside):
        lines += _explained(runs, bars, shares)
    else:
        lines.append("All runs are inside their error bars.")
    expected_s = [each.step_time_s for each in predictions]
    show(Group(_table(runs, expected_s, bars, outside), Text("\n".join(lines))))
    return FAILURE if any(outside) else OK


def _table(
    runs: Sequence[MeasuredRun],
    expected_s: Sequence[float],
    bars: Sequence[Bar],
    outside: Sequence[bool],
) -> Table:
    columns = ("run", "#measured", "#expected", "#error bar", "")
    table = plain_table(*columns, title="Runs beside what is expected of them")
    for run, usual_s, bar, out in zip(runs, expected_s, bars, outside, strict=True):
        word = "" if not out else "slower" if run.measured_s > usual_s else "faster"
        times = (format_seconds(run.measured_s), format_seconds(usual_s))
        table.add_row(run.name, *times, " to ".join(map(format_seconds, bar)), word)
    return table


def _explained(
    runs: Sequence[MeasuredRun], bars: Sequence[Bar], shares: Sequence[Sequence[float]]
) -> list[str]:
    """What may have moved. Runs inside their bars say what has not."""
    excess = np.log([run.measured_s for run in runs]) - np.log(bars).mean(axis=1)
    reach = 2 * NormalDist().inv_cdf((1 + LEVEL) / 2)
    spreads = np.diff(np.log(bars))[:, 0] / reach
    lines = ["What would explain it, the most probable first:"]
    for each in moved(excess, spreads, shares)[:_EXPLANATIONS]:
        if each.probability >= _LEAST_PROBABLE:
            what = WHOLE if each.name == WHOLE else each.name.removesuffix("_time")
            sure = f"{each.factor:.2f} ({each.probability:.0%})"
            cause = f": {CAUSES[each.name]}" if each.factor > 1 else ""
            lines.append(f"  {what} x {sure}{cause}")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "calibrate watch",
        "Say whether runs are as they are expected, and what has moved where they are not: for a "
        f"scheduled job. Of logs the last {RECENT} steps count.",
        "trainscout calibrate watch ours.csv --calibration calibration.yaml\n"
        "trainscout calibrate watch --from-log train.log --given launch.sh \\\n"
        "    --set cluster=h100_64 --calibration calibration.yaml",
        "0 all runs are inside their error bars; 1 one is not, or an internal failure; 2 wrong "
        "input",
    )
    add_sources(parser)
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="what runs were like before"
    )
    return parser
