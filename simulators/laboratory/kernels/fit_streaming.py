"""Fit bandwidth shares and launch floors of memory-bound kernels, one class at a time.

Residuals are on a random fifth of the sizes, which the fit does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainscout.simulators.laboratory.kernels.fit_gemm import HELD_OUT_SHARE, enough_rows
from trainscout.simulators.laboratory.kernels.regression import (
    Floats,
    Parameter,
    decode,
    residuals,
    rounded,
    solve,
)
from trainscout.simulators.predictor.kernels.streaming import MOVES_BYTES, streaming_seconds
from trainscout.simulators.predictor.kernels.streaming_rows import streaming_bytes
from trainscout.simulators.predictor.question.gpu import Gpu

if TYPE_CHECKING:
    import pandas as pd

FIT_ROWS = 3000
# Smaller ones say more about the launch than about the bandwidth.
SMALLEST_BYTES = 3e7
PARAMETERS = (
    Parameter("share", 0.6, 0.02, 0.97, log=False),
    Parameter("launch_s", 2e-6, 1e-6, 3e-6),
)


def fit_streaming(rows: pd.DataFrame, gpu: Gpu, kind: str) -> dict[str, Any]:
    """Share of the declared bandwidth and launch floor of one class, with residuals.

    Raises:
        InputError: when too few rows are usable.
    """
    moved = streaming_bytes(rows)
    usable = np.isfinite(moved) & (moved >= SMALLEST_BYTES)
    enough_rows(int(usable.sum()))
    times_s = rows["time_us"].to_numpy(np.float64)[usable] * 1e-6
    moved = moved[usable]
    order = np.random.default_rng(0).permutation(len(moved))[:FIT_ROWS]
    moved, times_s = moved[order], times_s[order]
    sizes = np.unique(moved)
    held_sizes = np.random.default_rng(0).permutation(sizes)[: int(HELD_OUT_SHARE * len(sizes))]
    held = np.isin(moved, held_sizes)

    def log_error(encoded: Floats, part: Any) -> Floats:
        values = decode(PARAMETERS, encoded)
        seconds = streaming_seconds(
            moved[part], 1.0, values["share"], values["launch_s"], kind in MOVES_BYTES, gpu
        )
        logs: Floats = np.log(seconds / times_s[part])
        return logs

    solution = solve(PARAMETERS, lambda encoded: log_error(encoded, ~held))
    return {
        **rounded(decode(PARAMETERS, solution)),
        "residuals": {"held_out": residuals(log_error(solution, held))},
    }
