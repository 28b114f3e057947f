"""The published rows and peers' predictions that ship with the project."""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.csv_files import read_headed_csv
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.uncertainty.table import RESIDUALS

DATA = Path(__file__).parents[1] / "data"
PUBLISHED_RUNS = DATA / "published_runs.csv"
PEER_PREDICTIONS = DATA / "peer_predictions.csv"


def add_runs(parser: ArgumentParser) -> None:
    """The argument of commands that read one table of measured runs."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="?",
        default=PUBLISHED_RUNS,
        help="CSV of measured runs (columns: docs/validation.md); default: the published rows",
    )


def add_output(parser: ArgumentParser, table: Path) -> None:
    """The option of commands that write a table which predictions use."""
    used = "where to write; default: the table that predictions use"
    parser.add_argument("--output", type=Path, default=table, help=used)


@dataclass(frozen=True)
class BlindTest:
    """Runs of publications that were read after the model had been made.

    ``runs`` were predicted before anybody had looked at an error of one of them, and
    ``predictions`` keeps that, with error bars ``widening`` times as wide as those of
    publications left out. ``statement``: how the publications that stayed apart were drawn, and
    what was seen of them all the same.
    """

    name: str
    runs: Path
    predictions: Path
    widening: str
    statement: str


BLIND_TESTS = tuple(
    BlindTest(
        runs=DATA / f"blind_tests/{number:02}_runs.csv",
        predictions=DATA / f"blind_tests/{number:02}_predictions.csv",
        **test,
    )
    for number, test in enumerate(read_yaml(DATA / "blind_tests.yaml"), 1)
)


@dataclass(frozen=True)
class PeerPrediction:
    """What another simulator predicts for a published row, in seconds.

    ``case_set`` names the set of published cases that the row belongs to.
    """

    case_set: str
    row_id: str
    peer: str
    predicted_s: float


def stored_coverage(path: Path = RESIDUALS) -> dict[str, Any]:
    """How often error bars held runs that were left out, from the header of their table, and
    ``order``: how often pairs of layouts came as predicted."""
    header, _ = read_headed_csv(path.read_text(encoding="utf-8"), "residuals")
    coverage: dict[str, Any] = header["coverage"]
    return coverage


def read_peer_predictions() -> tuple[PeerPrediction, ...]:
    """The peers' predictions in the order of the file."""
    with PEER_PREDICTIONS.open(encoding="utf-8", newline="") as file:
        return tuple(
            PeerPrediction(cells["set"], cells["id"], cells["peer"], float(cells["predicted_s"]))
            for cells in csv.DictReader(file)
        )
