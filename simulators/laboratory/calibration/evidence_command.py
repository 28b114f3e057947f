"""What calibrating published runs is worth: ``trainscout calibrate evidence --help``."""

from __future__ import annotations

import argparse
import dataclasses
import operator
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainscout.simulators.laboratory.published.jobs.jobs import shipped_declarations
from trainscout.simulators.laboratory.published.page.markdown import percent, signed
from trainscout.simulators.laboratory.published.published import add_runs
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.laboratory.published.regularity import mark_extrapolated
from trainscout.simulators.laboratory.published.replay import replay_with_progress
from trainscout.simulators.laboratory.residuals import Bare, residuals_of
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.output import write_whole
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import columns_of
from trainscout.simulators.predictor.uncertainty.interval import log_interval
from trainscout.simulators.predictor.uncertainty.posterior import PRIOR, Prior
from trainscout.simulators.predictor.uncertainty.table import published_residuals

from .evidence import (
    DRAWS,
    KNOWN,
    LEAST_LAYOUTS,
    LEAST_RUNS,
    Errors,
    Evidence,
    Published,
    Regret,
    common,
    evidence,
    regrets,
)
from .runs import MeasuredRun, with_predictions

_PAGE = "calibration.md"
_TEXTS = read_yaml(Path(__file__).with_name("evidence_texts.yaml"))


_SHOWN = 3
_SURE = 0.95
_LARGER = 1.0005


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    if not options.docs.is_dir():
        raise InputError("--docs", options.docs, "is no folder", "the docs folder")
    published = read_published(options.runs)
    prior, found = evidence(published)
    write_whole(PRIOR, prior_text(prior))
    write_whole(options.docs / _PAGE, page(found, regrets(published, prior), common(published)))
    return OK


def read_published(path: Path) -> Published:
    """The trusted rows with measured and predicted step times, as error bars take them."""
    rows = mark_extrapolated(read_rows(path))
    declarations = shipped_declarations()
    results = replay_with_progress(rows, declarations, Bare())
    of_row = {result.row.id: result for result in results}
    residuals = residuals_of(results)
    runs = []
    for each in residuals:
        result = of_row[each.id]
        assert result.job is not None
        assert result.measured_s is not None
        runs.append(MeasuredRun(each.id, result.job, result.measured_s))
    predicted = with_predictions(runs)
    known = published_residuals()
    bars = [log_interval(known, each.features) for each in residuals]
    return Published(
        runs=columns_of(predicted),
        errors=np.array([run.log_residual for run in predicted]),
        sources=np.array([each.source for each in residuals]),
        sweeps=np.array([f"{each.source}, sweep {each.sweep}" for each in residuals]),
        measured=np.log([run.measured_s for run in predicted]),
        widths=np.expm1([high - low for low, high in bars]),
    )


def prior_text(prior: Prior) -> str:
    """The file that predictions read."""
    fields = dataclasses.asdict(prior)
    return str(_TEXTS["prior"]) + "".join(
        f"{name}: {value:.3g}\n" for name, value in fields.items()
    )


def page(found: Sequence[Evidence], chosen: Sequence[Regret], at_most: Sequence[Errors]) -> str:
    """The page of the documentation."""
    of_publications = [each for each in found if not each.setup]
    of_setups = [each for each in found if each.setup]
    parts = [
        _TEXTS["head"].format(least=LEAST_RUNS, draws=DRAWS),
        _overall("One GPU, software and model", _TEXTS["setups"], of_setups),
        _at_most(at_most),
        _overall("Whole publications", _TEXTS["publications"], of_publications),
        _each(f"Publications, {_SHOWN} runs known", of_publications, _SHOWN),
        _suggestions(chosen),
    ]
    return "\n".join(parts)


def _overall(title: str, stated: str, found: Sequence[Evidence]) -> str:
    header = (
        *("known runs", "groups", "median error", "calibrated", "change"),
        *("p90", "calibrated", "worse p90", "beyond chance", "applied"),
        *("inside bars", "width", "calibrated"),
        *("ranked right", "calibrated"),
    )
    rows = []
    for known in KNOWN:
        of = [each for each in found if each.known == known]
        used = [each for each in of if each.applied]
        ranked = [each for each in of if each.before.ranked is not None]
        before, after = _mean(of, "before.median"), _mean(of, "after.median")
        rows.append(
            (
                *(known, len(of), percent(before), percent(after), signed(after / before - 1)),
                *(percent(_mean(of, "before.p90")), percent(_mean(of, "after.p90"))),
                sum(each.after.p90 > _LARGER * each.before.p90 for each in of),
                sum(each.worse >= _SURE for each in of),
                percent(_mean(of, "applied")),
                *(_percent(_mean(used, name)) for name in ("coverage", "width_before", "width")),
                *(percent(_mean(ranked, name)) for name in ("before.ranked", "after.ranked")),
            )
        )
    return f"\n## {title}\n\n{stated}\n\n{table(header, rows)}\n"


def _mean(found: Sequence[Evidence], figure: str) -> float:
    values = [operator.attrgetter(figure)(each) or 0.0 for each in found]
    return float(np.mean(values)) if values else float("nan")


def _at_most(errors: Sequence[Errors]) -> str:
    before, after = errors[::2], errors[1::2]
    medians = (float(np.mean([each.median for each in of])) for of in (after, before))
    change = next(medians) / next(medians) - 1
    grown = sum(b.p90 > _LARGER * a.p90 for a, b in zip(before, after, strict=True))
    words = _TEXTS["at_most"].format(change=signed(change), grown=grown, setups=len(before))
    return f"\n{words}"


def _each(title: str, found: Sequence[Evidence], known: int) -> str:
    header = (
        *("runs of", "runs", "median error", "calibrated", "p90", "calibrated", "p90 grows"),
        *("applied", "inside bars", "width", "calibrated"),
    )
    rows = [
        (
            *(each.source, each.n, percent(each.before.median), percent(each.after.median)),
            *(percent(each.before.p90), percent(each.after.p90), f"{each.worse:.0%}"),
            percent(each.applied),
            *(_percent(each.coverage), percent(each.width_before), _percent(each.width)),
        )
        for each in found
        if each.known == known
    ]
    return f"\n## {title}\n\n{table(header, rows)}\n"


def _suggestions(chosen: Sequence[Regret]) -> str:
    header = ("sweep", "layouts", "none", "suggested", "random", "predicted best")
    ways = ("predicted", "suggested", "random", "best_predicted")
    rows: list[tuple[object, ...]] = [
        (each.sweep, each.layouts, *(percent(getattr(each, way)) for way in ways))
        for each in chosen
    ]
    means = [percent(float(np.mean([getattr(each, way) for each in chosen]))) for way in ways]
    rows.append(("mean", "", *means))
    words = _TEXTS["suggestions"].format(least=LEAST_LAYOUTS)
    return f"\n{words}\n\n{table(header, rows)}\n"


def _percent(value: float) -> str:
    return percent(None if np.isnan(value) else value)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "calibrate evidence",
        "Learn from published runs what calibrations start from, and write what they are worth.",
        "trainscout calibrate evidence",
    )
    add_runs(parser)
    parser.add_argument(
        "--docs", type=Path, default=Path("docs"), help=f"where to write {_PAGE} (default docs)"
    )
    return parser
