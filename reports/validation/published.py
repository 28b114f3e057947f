"""The published rows and peers' predictions that ship with the project."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
PUBLISHED_RUNS = DATA / "published_runs.csv"
PEER_PREDICTIONS = DATA / "peer_predictions.csv"


@dataclass(frozen=True)
class PeerPrediction:
    """What another simulator predicts for a published row, in seconds.

    ``case_set`` names the set of published cases that the row belongs to.
    """

    case_set: str
    row_id: str
    peer: str
    predicted_s: float


def read_peer_predictions(path: Path = PEER_PREDICTIONS) -> tuple[PeerPrediction, ...]:
    """The peers' predictions in the order of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            PeerPrediction(cells["set"], cells["id"], cells["peer"], float(cells["predicted_s"]))
            for cells in csv.DictReader(file)
        )
