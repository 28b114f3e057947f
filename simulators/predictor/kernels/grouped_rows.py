"""Grouped products as measured tables hold them: groups x (m_per_group x n x k), by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.kernels.coefficients import GroupedCoefficients
from trainscout.simulators.predictor.kernels.gemm import Floats, price_gemms
from trainscout.simulators.predictor.question.gpu import Gpu

if TYPE_CHECKING:
    import pandas as pd

STAGES = {
    "fwd": ("TN",),
    "bwd_grad_act": ("NN",),
    "bwd_grad_w": ("NT",),
    "fwd+bwd": ("TN", "NN", "NT"),
}
# Implementations that compute all groups in one kernel, where others launch each.
ONE_KERNEL = r"DeepGEMM|m_grouped|_grouped_mm"


def grouped_seconds(
    rows: pd.DataFrame, gpu: Gpu, dtype: str, groups: GroupedCoefficients | None = None
) -> Floats:
    """Seconds of each row's stage, shape (rows,); ``groups`` None takes the GPU's own fit.

    A gradient accumulates into fp32 unless the row's flag says its main gradient is 16-bit.
    """
    count, m, n, k = rows[["groups", "m_per_group", "n", "k"]].round().to_numpy(np.int64).T
    shared = rows["impl"].str.contains(ONE_KERNEL).to_numpy()
    wide = ~rows["flag"].str.contains("main_grad=bf16", regex=False).to_numpy()
    seconds = np.zeros(len(rows))
    yes = np.ones(len(rows), dtype=bool)
    operands = {
        "TN": np.stack([m, n, k, count], axis=1),
        "NN": np.stack([m, k, n, count], axis=1),
        "NT": np.stack([n, k, m, count], axis=1),
    }
    for layout, sizes in operands.items():
        wanted = rows["stage"].map(lambda stage, layout=layout: layout in STAGES[stage])
        gradient = yes & (layout == "NT")
        args = (gpu, dtype, sizes, gradient, gradient & wide, yes)
        apart, _, _ = price_gemms(*args, grouped_as=groups)
        together, _, _ = price_gemms(*args, grouped_as=groups, group_launches=False)
        seconds += np.where(wanted, np.where(shared, together, apart), 0.0)
    return seconds
