"""What the overlap model is worth: ``python -m benchmarks.overlap_effect [RUNS.csv]``.

Predicts measured runs twice, as the product does and as if kernels and communication did not
slow each other, and compares the errors on the rows where that matters.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from trainscout.simulators.laboratory.published.jobs import shipped_declarations
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.laboratory.published.rows import TRUSTED, read_rows
from trainscout.simulators.laboratory.validate import replay_with_progress
from trainscout.simulators.predictor.interference import overlap_slowdowns
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay import graph, prices
from trainscout.simulators.registry import get_simulator

# Rows whose predicted step changes by less say nothing about interference.
MATTERS = 0.003
FEWEST_ROWS = 4


@contextmanager
def without_interference() -> Iterator[None]:
    """Slowdowns of one, and no price from before."""

    def none(
        gpu: Gpu, kernel_s: np.ndarray, channels: np.ndarray, comm_bytes_per_s: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        ones = np.ones((len(kernel_s), len(channels)))
        return ones, ones

    try:
        for module in (prices, graph):
            setattr(module, "overlap_slowdowns", none)  # noqa: B010
        prices._priced.cache_clear()
        yield
    finally:
        for module in (prices, graph):
            setattr(module, "overlap_slowdowns", overlap_slowdowns)  # noqa: B010
        prices._priced.cache_clear()


def compared(
    slowed: Sequence[Result], ideal: Sequence[Result]
) -> dict[str, list[tuple[float, float]]]:
    """Signed errors with and without interference of the rows where it matters, by GPU."""
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for first, second in zip(slowed, ideal, strict=True):
        if first.error is None or second.error is None or first.row.quality not in TRUSTED:
            continue
        if abs((1 + first.error) / (1 + second.error) - 1) > MATTERS:
            errors["all"].append((first.error, second.error))
            errors[first.row.gpu].append((first.error, second.error))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path, default=PUBLISHED_RUNS)
    rows = read_rows(parser.parse_args().runs)
    declared = shipped_declarations()
    simulator = get_simulator("replay")
    slowed = replay_with_progress(rows, declared, simulator)
    with without_interference():
        ideal = replay_with_progress(rows, declared, simulator)
    table = Table(
        "rows of", "n", *(f"{name}: median |error|, bias" for name in ("with", "without"))
    )
    for gpu, pairs in sorted(compared(slowed, ideal).items(), key=lambda item: -len(item[1])):
        if len(pairs) < FEWEST_ROWS:
            continue
        cells = [
            f"{100 * np.median(np.abs(column)):.1f} %, {100 * np.median(column):+.1f} %"
            for column in np.array(pairs).T
        ]
        table.add_row(gpu, str(len(pairs)), *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
