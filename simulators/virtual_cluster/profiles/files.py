"""What is kept of a profile: tables of kernels, factors, a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import make_folder, write_output
from trainscout.simulators.predictor.kernels.table_rows import COLUMNS
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.profiles.measured import MeasuredOperation
from trainscout.simulators.virtual_cluster.profiles.observed import kernel_rows

FACTORS, KERNELS = "observed_factors.json", "measured_kernels"


def kept_files(
    observed: Mapping[str, Any], operations: Iterable[MeasuredOperation], gpu: Gpu
) -> dict[str, str]:
    """Texts by name: ``observed_factors.json``, and a table for each class of kernels in
    ``measured_kernels/``."""
    texts = {FACTORS: json_text(observed)}
    for name, rows in kernel_rows(operations, gpu).items():
        texts[f"{KERNELS}/{name}.csv"] = csv_text(COLUMNS[name], rows)
    return texts


def write_files(option: str, directory: Path, texts: Mapping[str, str]) -> None:
    """Write texts under their names in ``directory``, which is made.

    Raises:
        InputError: naming ``option``, when they cannot be written.
    """
    for name, text in texts.items():
        path = directory / name
        make_folder(option, path.parent)
        write_output(option, path, text)


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
