"""Fit the attention model to measured rows of one GPU, precision and kernel generation.

Residuals are from five-fold cross-validation over (heads, head size, sequence length) groups.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from trainscout.simulators.predictor.kernels.attention import WIDE_HEAD, attention_seconds
from trainscout.simulators.predictor.kernels.coefficients import (
    PRECISION_CLASS,
    AttentionCoefficients,
)
from trainscout.simulators.predictor.kernels.gemm import ELEMENT_BYTES, LOOP_CEILING, Floats
from trainscout.simulators.predictor.kernels.row_batches import ATTENTION_SHAPE, attention_flops
from trainscout.simulators.predictor.question.gpu import Gpu

from .fit_gemm import enough_rows
from .regression import Parameter, cross_validated, decode, rounded, solve

if TYPE_CHECKING:
    import pandas as pd

FIT_ROWS = 1500
# Rows of one pass against the pass with the fewest.
MOST_OF_A_PASS = 4
PASSES = ("fwd", "bwd")
PARAMETERS = (
    Parameter("efficiency", 0.7, 0.1, LOOP_CEILING, log=False),
    Parameter("softmax_s_per_score", 2e-11, 1e-13, 1e-9),
    Parameter("partial_wave", 0.5, 0.0, 1.0, log=False),
    Parameter("item_latency_s", 1e-6, 1e-8, 3e-5),
    Parameter("dram_efficiency", 0.6, 0.2, 1.0, log=False),
    Parameter("causal_overhead_tokens", 500.0, 64.0, 4000.0),
    Parameter("wide_head_factor", 1.1, 1.0, 2.0),
    Parameter("launch_s", 3e-6, 1e-6, 1e-5),
)
_START = np.array([p.encode(p.start) for p in PARAMETERS])


def attention_log_error(
    rows: pd.DataFrame, passes: dict[str, AttentionCoefficients], gpu: Gpu, dtype: str
) -> Floats:
    """log(predicted / measured); a ``fwd+bwd`` row is the sum of both passes."""
    shapes = rows[ATTENTION_SHAPE].to_numpy(np.int64)
    per_sm = gpu.peak(dtype) / gpu.sms
    total = np.zeros(len(rows))
    for name, coefficients in passes.items():
        seconds, _ = attention_seconds(
            shapes,
            name == "bwd",
            ELEMENT_BYTES[dtype],
            coefficients,
            gpu.sms,
            per_sm,
            per_sm,
            gpu.memory_bandwidth_bytes_per_s,
        )
        total += np.where(rows["pass"].str.contains(name, regex=False), seconds, 0.0)
    logs: Floats = np.log(total * 1e6 / rows["time_us"].to_numpy(np.float64))
    return logs


def fit_attention(rows: pd.DataFrame, gpu: Gpu, dtype: str) -> dict[str, Any]:
    """Coefficients of the passes the rows hold, and cross-validated residuals by pass.

    Raises:
        InputError: when too few rows are usable.
    """
    rate = attention_flops(rows) / rows["time_us"] / 1e6
    usable = rate * 1e12 <= gpu.peak(dtype)
    if "tflops" in rows.columns:
        # A rate that disagrees with the shape: a window or a varlen batch, not full attention.
        usable &= ~(np.abs(rate / rows["tflops"] - 1) >= 0.1)
    # Training adds up in a fixed order only when told to. With 16-bit heads of 128 that takes 16
    # to 19 % longer (cuDNN on GB200 and GB300, 38 pairs of rows), with others no longer.
    slow = (rows["head_dim"] <= WIDE_HEAD) & (PRECISION_CLASS[dtype] == "half")
    usable &= ~(slow & rows["flag"].str.contains("deterministic"))
    rows = rows[usable]
    enough_rows(len(rows))
    # Forward rows are plentiful; they must not crowd out the rare ones with a backward.
    scarcest = int(rows["pass"].value_counts().min())
    quota = FIT_ROWS if rows["pass"].nunique() == 1 else MOST_OF_A_PASS * scarcest
    shuffled = rows.sample(frac=1.0, random_state=0)
    rows = shuffled[shuffled.groupby("pass").cumcount() < quota]
    present = [name for name in PASSES if rows["pass"].str.contains(name, regex=False).any()]
    parameters = list(PARAMETERS) * len(present)
    start = np.tile(_START, len(present))
    size = len(PARAMETERS)

    def passes(encoded: Floats) -> dict[str, AttentionCoefficients]:
        return {
            name: AttentionCoefficients(
                **decode(PARAMETERS, encoded[index * size : (index + 1) * size])
            )
            for index, name in enumerate(present)
        }

    def fitted(part: pd.DataFrame) -> dict[str, AttentionCoefficients]:
        def log_error(encoded: Floats) -> Floats:
            # A weak pull to the start keeps directions the rows do not see (the split of a
            # fwd+bwd time, the softmax share at one head size) at plausible values.
            pull = 0.02 * (encoded - start)
            return np.concatenate([attention_log_error(part, passes(encoded), gpu, dtype), pull])

        return passes(solve(parameters, log_error))

    def unseen(out: pd.DataFrame, others: pd.DataFrame) -> Floats:
        return attention_log_error(out, fitted(others), gpu, dtype)

    shape = ["heads", "head_dim", "seq_k", "causal"]
    final = {name: dataclasses.asdict(value) for name, value in fitted(rows).items()}
    return {
        "coefficients": rounded(final),
        "residuals": cross_validated(rows, shape, "pass", unseen),
    }
