"""Which runs to measure next: ``trainscout calibrate suggest --help``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.text import Text

from trainscout.conf.build import build_question
from trainscout.optimizer.warm_start import read_recipes, recipes_file
from trainscout.reports.wording import format_recipe, format_seconds
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.terminal import plain_table, show
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.memory.bands import FITS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import (
    Calibration,
    columns_of,
    read_calibration,
)
from trainscout.simulators.predictor.uncertainty.posterior import (
    Columns,
    Posterior,
    Vector,
    published_prior,
    traits_of,
)

_DRAWS = 512
# Typical standard deviation, as a logarithm, of published runs of one job: the median of 117 jobs.
_REPEATED = 0.01


@dataclass(frozen=True)
class Suggested:
    """A run to measure: the ``row`` of its candidate, and by what share of a step the recipe
    chosen is expected to be slower than the best (``regret``) with it and those before it."""

    row: int
    regret: float


def suggest(
    expected: Vector, covariance: Vector, count: int, seed: int = 0
) -> tuple[float, tuple[Suggested, ...]]:
    """The expected regret of choosing now, and ``count`` runs to measure.

    What the times of the candidates may truly be is drawn from what is known of their errors. A
    set of runs is worth what the recipe that one would choose after measuring it gains over the
    one chosen now, on average; runs are added to the set one by one, each time the most worth (the
    knowledge gradient of Frazier, Powell and Dayanik 2009, for several measurements, by drawing).
    What a layout's time has of its own is there whenever it runs, so that measuring it tells it.

    Args:
        expected: (n,) logarithms of candidates' step times.
        covariance: (n, n) of their errors, with what is each candidate's own.
    """
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    truth = expected + rng.standard_normal((_DRAWS, len(expected))) @ root.T
    seen = truth + _REPEATED * rng.standard_normal(truth.shape)
    best = truth.min(axis=1)
    chosen: list[int] = []
    found: list[Suggested] = []
    now = float(np.mean(truth[:, expected.argmin()] - best))
    while len(chosen) < min(count, len(expected)):
        regrets = [
            _regret(expected, covariance, [*chosen, row], truth, seen)
            if row not in chosen
            else np.inf
            for row in range(len(expected))
        ]
        chosen.append(int(np.argmin(regrets)))
        found.append(Suggested(chosen[-1], float(np.expm1(min(regrets) - best.mean()))))
    return float(np.expm1(now)), tuple(found)


def _regret(
    expected: Vector, covariance: Vector, rows: list[int], truth: Vector, seen: Vector
) -> float:
    """Mean logarithm of the step that is chosen with these candidates measured."""
    own = covariance[np.ix_(rows, rows)] + _REPEATED**2 * np.eye(len(rows))
    gain = np.linalg.solve(own, covariance[rows])
    learned = expected + (seen[:, rows] - expected[rows]) @ gain
    return float(truth[np.arange(len(truth)), learned.argmin(axis=1)].mean())


SHORT_STEPS = 30
"""A short run: ten steps to warm up, twenty to measure."""
_MOST_CANDIDATES = 200


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    if options.runs < 1:
        raise InputError("--runs", options.runs, "is no number of runs", "1 or more")
    known = None if options.calibration is None else read_calibration(options.calibration)
    directory = recipes_file(options.search).parent
    question = read_question(directory)
    recipes = read_recipes("search", directory)[:_MOST_CANDIDATES]
    if len(recipes) < 2:
        problem, allowed = "leaves nothing to choose from", "search.top_k=40 or more"
        raise InputError("search", directory, problem, allowed)
    if known is not None:
        known.check_gpu(question.gpu)
    simulator = ReplaySimulator(known)
    found = [simulator.with_shares(question.job(recipe)) for recipe in recipes]
    predictions = [prediction for prediction, _ in found]
    traits = [traits_of(question.job(recipe)) for recipe in recipes]
    columns = Columns.of(traits, [shares for _, shares in found])
    expected = np.log([prediction.step_time_s for prediction in predictions])
    posterior = _posterior(known)
    # Of what is measured already, nothing of its own is left to be known.
    measured = set() if known is None else {run.traits for run in known.runs}
    own = [0.0 if each in measured else posterior.noise**2 for each in traits]
    now, chosen = suggest(expected, posterior.covariance(columns) + np.diag(own), options.runs)
    rows = [each.row for each in chosen]
    gains = [now, *(each.regret for each in chosen)]
    show(_report(question, recipes, predictions, rows, gains))
    if directory != options.search:
        show(Text(f"Recipes are those of {directory}, the last search there."))
    return OK


def _posterior(known: Calibration | None) -> Posterior:
    runs = () if known is None else known.runs
    errors = np.array([run.log_residual for run in runs])
    return Posterior(columns_of(runs), errors, published_prior())


def read_question(search: Path) -> Question:
    """What a finished search asked, as its directory keeps it.

    Raises:
        InputError: for a directory that is none of a search.
    """
    file = search / ".hydra" / "config.yaml"
    if not file.is_file():
        problem, allowed = "is no search's directory", "hydra.run.dir of trainscout optimize"
        raise InputError("search", search, problem, allowed)
    return build_question(read_yaml(file, "search"))


def _report(
    question: Question,
    recipes: Sequence[Recipe],
    predictions: Sequence[Prediction],
    rows: Sequence[int],
    regrets: Sequence[float],
) -> Group:
    title = f"Runs to measure, of {len(recipes)} recipes of {question.cluster.name}"
    columns = ("#predicted step", "#rank", "#GPU-minutes", "#memory", "#leaves")
    table = plain_table("recipe", *columns, title=title)
    total = 0.0
    for row, regret in zip(rows, regrets[1:], strict=True):
        prediction = predictions[row]
        minutes = prediction.step_time_s * SHORT_STEPS * question.cluster.num_gpus / 60
        total += minutes
        band = prediction.memory.band
        memory = "fits" if band == FITS else f"risky: {prediction.memory.fit_probability:.0%}"
        words = format_recipe(recipes[row], question.job(recipes[row]).dp)
        cells = (str(row + 1), f"{math.ceil(minutes)}", memory, f"{regret:.2%}")
        table.add_row(words, format_seconds(prediction.step_time_s), *cells)
    gain = (regrets[0] - regrets[-1]) / (1 + regrets[0])
    lines = (
        f"The recipe predicted best is expected to be {regrets[0]:.2%} slower than the best of "
        f"them; what each run leaves of that is its last column.\n"
        f"{len(rows)} short runs ({SHORT_STEPS} steps each) take {math.ceil(total)} GPU-minutes, "
        f"without starting up, and are expected to make the step {gain:.2%} shorter."
    )
    return Group(table, Text(lines))


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "calibrate suggest",
        "Say which recipes of a search to measure, so that the choice of the best gains most.",
        "trainscout optimize model=llama3_8b cluster=h100_64 search.top_k=40 hydra.run.dir=out\n"
        "trainscout calibrate suggest out --runs 3",
    )
    parser.add_argument("search", type=Path, help="directory of a search, or of several")
    parser.add_argument("--runs", type=int, default=3, help="how many (default 3)")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="what earlier runs have said"
    )
    return parser
