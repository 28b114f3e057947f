"""Hold the model against measured collectives.

    trainscout collectives validate TABLE.csv --json OUT.json

Every usable row of an nccl-tests table (columns in ``measurements.py``) is predicted from what the
row says about its machine. The same rows are given to NCCL's own cost model, which prices
neither all-to-all nor point-to-point. Errors are fractions of the measured time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.laboratory.score import as_dicts, medians, summarise, summarise_by
from trainscout.simulators.predictor.collectives.cost import choose
from trainscout.simulators.predictor.collectives.graph import wiring_of
from trainscout.simulators.predictor.collectives.price import (
    CollectivePrice,
    price_forced,
    price_send_recv,
)
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output

from .least_squares import least_us
from .measurements import Measurement, read_table, size_band


@dataclass(frozen=True)
class Outcome:
    """One row predicted: seconds, and NCCL's own estimate where it has one."""

    measurement: Measurement
    price: CollectivePrice
    nccl_s: float | None

    @property
    def error(self) -> float:
        return self.price.seconds / self.measurement.seconds - 1

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Those of the row, and that a forced algorithm cannot run there if it cannot."""
        forced, taken = self.measurement.algorithm, self.price.algorithm
        if forced in ("", taken):
            return self.measurement.assumptions
        return (*self.measurement.assumptions, f"{forced} cannot run here: {taken} is priced")


def predict(measurement: Measurement) -> Outcome:
    """The model's price of one measured call."""
    gpu, cluster = measurement.gpu, measurement.cluster
    communicator, size = measurement.communicator, measurement.size_bytes
    if measurement.kind == "send_recv":
        price = price_send_recv(size, communicator.nodes > 1, communicator, gpu, cluster)
        return Outcome(measurement, price, None)
    kind, forced = measurement.kind, measurement.algorithm
    price = price_forced(kind, size, communicator, gpu, cluster, forced)
    price = replace(price, seconds=max(price.seconds, least_us(measurement) * 1e-6))
    if kind == "all_to_all":
        return Outcome(measurement, price, None)
    option = choose(kind, size, wiring_of(communicator, gpu, cluster), forced)
    return Outcome(measurement, price, option.time_us(size) * 1e-6)


GROUPS: Mapping[str, Callable[[Outcome], str]] = {
    "by_cluster": lambda each: each.measurement.cluster_id,
    "by_collective": lambda each: each.measurement.kind,
    "by_size_band": lambda each: size_band(each.measurement.size_bytes),
}


def mean_of_medians(cells: Iterable[tuple[tuple[str, str], float]]) -> float | None:
    """Median absolute error of each (cluster, size band), averaged over the cells."""
    found = list(medians(cells).values())
    return float(np.mean(found)) if found else None


def report(outcomes: Sequence[Outcome], skipped: Sequence[Any]) -> dict[str, Any]:
    """The document that ``--json`` writes."""
    document = _figures([(each, each.error) for each in outcomes], len(skipped))
    for title, key in GROUPS.items():
        document[title] = as_dicts(summarise_by(outcomes, key, lambda each: each.error))
    priced = [(each, each.nccl_s) for each in outcomes if each.nccl_s is not None]
    own = [(each, nccl_s / each.measurement.seconds - 1) for each, nccl_s in priced]
    document["nccl_model"] = _figures(own, len(outcomes) - len(own))
    same = [(each, each.error) for each, _ in own]
    document["nccl_model"]["ours_on_the_same_rows"] = _figures(same, 0)
    document["rows"] = [
        {
            "id": each.measurement.id,
            "measured": each.measurement.seconds,
            "predicted": each.price.seconds,
            "error": each.error,
            "assumptions": list(each.assumptions),
        }
        for each in outcomes
    ]
    document["skipped"] = [{"id": each.id, "reason": each.reason} for each in skipped]
    return document


def _figures(errors: Sequence[tuple[Outcome, float]], skipped: int) -> dict[str, Any]:
    cells = ((_cell(each), error) for each, error in errors)
    return {
        "overall": summarise([error for _, error in errors], skipped).to_dict(),
        "per_cluster_and_band_mean_of_medians": mean_of_medians(cells),
    }


def _cell(outcome: Outcome) -> tuple[str, str]:
    measured = outcome.measurement
    return measured.cluster_id, size_band(measured.size_bytes)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = command_parser(
        "collectives validate",
        "Hold the prices of collectives against measured ones, and NCCL's own model.",
        "trainscout collectives validate results.csv\n"
        "trainscout collectives validate results.csv --json errors.json",
    )
    parser.add_argument("table", type=Path, help="CSV of measured collectives")
    parser.add_argument("--json", type=Path, help="where to write the report")
    options = parser.parse_args(arguments)
    check_output("--json", options.json, [options.table])
    measurements, skipped = read_table(options.table)
    document = report([predict(each) for each in measurements], skipped)
    if options.json is not None:
        write_output("--json", options.json, json.dumps(document, indent=1))
    show_text(_summary(document))
    return OK


def _summary(document: Mapping[str, Any]) -> str:
    overall = document["overall"]
    lines = [f"{overall['n']} rows, {overall['skipped']} skipped"]
    if overall["n"]:
        mean = document["per_cluster_and_band_mean_of_medians"]
        lines += [
            f"median {overall['median_abs_error']:.1%}, p90 {overall['p90_abs_error']:.1%}",
            f"median per cluster and size band, averaged: {mean:.1%}",
        ]
    own = document["nccl_model"]
    if own["overall"]["n"]:
        same = own["ours_on_the_same_rows"]
        lines.append(
            f"NCCL's own model on {own['overall']['n']} of them: "
            f"median {own['overall']['median_abs_error']:.1%} "
            f"(ours {same['overall']['median_abs_error']:.1%}), averaged "
            f"{own['per_cluster_and_band_mean_of_medians']:.1%} "
            f"(ours {same['per_cluster_and_band_mean_of_medians']:.1%})"
        )
    return "\n".join(lines) + "\n"
