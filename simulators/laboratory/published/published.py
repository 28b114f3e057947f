"""The published rows and peers' predictions that ship with the project."""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.io.csv_files import read_headed_csv
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


BLIND_TESTS = (
    BlindTest(
        "First test, November 2026",
        DATA / "later_runs.csv",
        DATA / "later_predictions.csv",
        "1.5",
        "Publications *kept apart* were drawn by a hash of their names before any prediction. "
        "Only their sums were looked at (and one row of FlagPerf's, of -2%) until the second test "
        "had been predicted; then their rows were printed, too, and what FlagPerf's scripts of "
        "Megatron-LM leave on was read: what is predicted now is in view of all rows.",
    ),
    BlindTest(
        "Second test, a day later",
        DATA / "later_runs_2.csv",
        DATA / "later_predictions_2.csv",
        "2",
        "Publications *kept apart* are the half whose names come first by SHA-256; only the sums "
        "below were looked at (of Alpa's one row it is that row), once all that was mended had "
        "been; then, before the third test, all rows were printed.",
    ),
    BlindTest(
        "Third test, the same month",
        DATA / "later_runs_3.csv",
        DATA / "later_predictions_3.csv",
        "2",
        "Publications *kept apart* are the half whose names come first by SHA-256. Which words of "
        "a row no rule reads was looked at before the predictions were kept, and left as it was.",
    ),
    BlindTest(
        "Fourth test, a day after the third",
        DATA / "later_runs_4.csv",
        DATA / "later_predictions_4.csv",
        "2.3",
        "Publications *kept apart* are the half whose names come first by SHA-256; their rows "
        "were printed, too, once what the others tell had been mended: the time of fused "
        "attention in libraries, words of the precision, GH200. What Megatron-Bridge's library "
        "sets was read in view of one of them (18 runs). Two of its rows had another batch than "
        "their FLOP/s allow and were given the one that these tell, after the predictions were "
        "kept.",
    ),
    BlindTest(
        "Fifth test, after the fourth had been read",
        DATA / "later_runs_5.csv",
        DATA / "later_predictions_5.csv",
        "1.6 (to the slower side 1.5 to 4.5)",
        "Publications *kept apart* are the half whose names come first by SHA-256. Nine "
        "rows of ATorch's say only since the predictions that FlashAttention replaced modules, "
        "as its scripts do; three with an optimizer on the CPU are refused now.",
    ),
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


def stored_coverage(path: Path = RESIDUALS) -> dict[str, float]:
    """How often error bars held runs that were left out, from the header of their table."""
    header, _ = read_headed_csv(path.read_text(encoding="utf-8"), "residuals")
    coverage: dict[str, float] = header["coverage"]
    return coverage


def read_peer_predictions() -> tuple[PeerPrediction, ...]:
    """The peers' predictions in the order of the file."""
    with PEER_PREDICTIONS.open(encoding="utf-8", newline="") as file:
        return tuple(
            PeerPrediction(cells["set"], cells["id"], cells["peer"], float(cells["predicted_s"]))
            for cells in csv.DictReader(file)
        )
