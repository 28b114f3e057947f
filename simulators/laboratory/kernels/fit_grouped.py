"""Fit what grouped products cost beyond single ones, on one GPU whose products are fitted.

Residuals are from five-fold cross-validation over the shapes of the experts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from trainscout.simulators.laboratory.kernels.fit_gemm import enough_rows
from trainscout.simulators.laboratory.kernels.regression import (
    Parameter,
    cross_validated,
    decode,
    rounded,
    solve,
)
from trainscout.simulators.predictor.kernels.coefficients import GroupedCoefficients
from trainscout.simulators.predictor.kernels.gemm import Floats
from trainscout.simulators.predictor.kernels.prices import price_batch
from trainscout.simulators.predictor.kernels.row_batches import ALIKE, grouped_batches
from trainscout.simulators.predictor.question.gpu import Gpu

if TYPE_CHECKING:
    import pandas as pd

PARAMETERS = (
    Parameter("group_s", 4e-6, 1e-8, 5e-5),
    Parameter("weight_gradient_factor", 1.1, 1.0, 2.0, log=False),
)


def fit_grouped(rows: pd.DataFrame, gpu: Gpu, dtype: str) -> dict[str, Any]:
    """Coefficients of grouped products, and cross-validated residuals by stage.

    Raises:
        InputError: when too few rows are usable.
    """
    enough_rows(len(rows))

    def log_error(part: pd.DataFrame, encoded: Floats) -> Floats:
        coefficients = GroupedCoefficients(**decode(PARAMETERS, encoded))
        seconds = np.zeros(len(part))
        for positions in part.groupby(ALIKE["grouped_gemm"], sort=False).indices.values():
            for batch in grouped_batches(part.iloc[positions], dtype):
                prices = price_batch(gpu, batch, as_training=False, grouped_as=coefficients)
                seconds[positions] += prices.seconds
        logs: Floats = np.log(seconds * 1e6 / part["time_us"].to_numpy(np.float64))
        return logs

    def fitted(part: pd.DataFrame) -> Floats:
        return solve(PARAMETERS, lambda encoded: log_error(part, encoded))

    def unseen(out: pd.DataFrame, others: pd.DataFrame) -> Floats:
        return log_error(out, fitted(others))

    coefficients = GroupedCoefficients(**rounded(decode(PARAMETERS, fitted(rows))))
    return {
        "coefficients": dataclasses.asdict(coefficients),
        "residuals": cross_validated(rows, ["groups", "n", "k"], "stage", unseen),
    }
