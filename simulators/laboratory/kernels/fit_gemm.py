"""Fit the tile model of matrix products to measured rows of one GPU and precision.

Coefficients come from bursts; where the rows hold runs long enough to meet the power limit
too, or at least bursts of products so long that they meet it, the sustained share of peak is
fitted to those with the coefficients fixed. Residuals are
on unseen (n, k) pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainscout.simulators.predictor.kernels import gemm
from trainscout.simulators.predictor.kernels.coefficients import GemmCoefficients
from trainscout.simulators.predictor.kernels.measured_rows import CAST_LAUNCH_S
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

from .regression import Parameter, decode, residuals, rounded, solve

if TYPE_CHECKING:
    import pandas as pd

FIT_ROWS = 4000
FEWEST_ROWS = 12
HELD_OUT_SHARE = 0.2
# Bursts of longer products meet the power limit themselves.
LONGEST_BURST_FLOPS = 1e12
# Bursts of these last a third of a second and more, long past what averages the power.
LONG_BURST_FLOPS = 1e13
# Shorter ones say little about power.
SMALLEST_POWERED_FLOPS = 1e10
# The loss has several valleys, distinguished by how a tile's time divides into loop and epilogue.
EFFICIENCY_STARTS = (0.6, 0.75, 0.9)
EPILOGUE_STARTS = (1e-12, 2e-11)
LAUNCH_BOUNDS_S = (1e-6, 5e-6)

PARAMETERS = (
    Parameter("partial_wave", 0.5, 0.0, 1.0, log=False),
    Parameter("tile_latency_s", 1e-6, 1e-8, 1e-5),
    Parameter("epilogue_s_per_element", 2e-11, 1e-13, 1e-9),
    Parameter("l2_bytes_per_s_per_sm", 8e10, 1e10, 1e12),
    Parameter("dram_efficiency", 0.85, 0.5, 1.0, log=False),
    Parameter("split_traffic", 1.0, 0.3, 10.0),
    Parameter("overlap_exponent", 3.0, 1.2, 8.0),
    Parameter("launch_s", 2e-6, *LAUNCH_BOUNDS_S),
)
# The activation's cast from 16 bits is its own operation here; where the times include it, it
# is fitted beside the product and left out of the coefficients.
# Fitted only where the rows hold batched products.
BATCHED = Parameter("batched_factor", 1.0, 1.0, 2.0, log=False)
CAST_EFFICIENCY = Parameter("cast_dram_efficiency", 0.5, 0.02, 1.0)
SUSTAINED = Parameter("fraction_of_peak", 0.7, 0.2, 2.0)


def enough_rows(count: int) -> None:
    """Refuse a selection too small to fit."""
    if count < FEWEST_ROWS:
        problem = "usable rows are too few to fit; loosen --where"
        raise InputError("rows", count, problem, f">= {FEWEST_ROWS}")


def gemm_coefficients(tiles: Sequence[str], values: dict[str, float]) -> GemmCoefficients:
    """Split fitted values into tile efficiencies and the rest."""
    rest = {BATCHED.name: 1.0} | {name: values[name] for name in values if name not in tiles}
    return GemmCoefficients(tile_efficiency={name: values[name] for name in tiles}, **rest)


def burst_seconds(
    rows: pd.DataFrame,
    coefficients: GemmCoefficients,
    rates: gemm.GemmRates,
    element: float,
    cast_efficiency: float | None,
) -> gemm.Floats:
    """Predicted seconds of aligned rows at full clocks, shape (rows,).

    ``cast_efficiency`` None: the times hold the product alone.
    """
    m, n, k, batch = (rows[name].to_numpy(np.float64) for name in ("m", "n", "k", "batch"))
    variants = gemm.tile_variants(coefficients, rates)
    compute = gemm.compute_seconds(m, n, k, batch, element, variants, coefficients, rates)
    compute = compute * np.where(batch > 1, coefficients.batched_factor, 1.0)
    if rates.sustained_flops_per_s < np.inf:
        compute = gemm.join(
            compute, 2.0 * m * n * k * batch / rates.sustained_flops_per_s, gemm.POWER_EXPONENT
        )
    compute = compute * np.where(rows["layout"] == "NT", gemm.WEIGHT_GRADIENT_FACTOR, 1.0)
    dram_bytes = batch * (element * k * (m + n) + max(element, 2) * m * n)
    dram = dram_bytes / (rates.dram_bytes_per_s * coefficients.dram_efficiency)
    seconds = gemm.join(compute, dram, coefficients.overlap_exponent) + coefficients.launch_s
    if cast_efficiency is not None:
        seconds += CAST_LAUNCH_S
        seconds += (2 + element) * batch * m * k / (rates.dram_bytes_per_s * cast_efficiency)
    return seconds


def usable_rows(rows: pd.DataFrame, peak: float) -> pd.DataFrame:
    """Aligned rows not above peak, with their FLOPs; the alignment factors are published."""
    aligned = (rows["k"] % 8 == 0) & (rows["n"] % 8 == 0)
    aligned &= (rows["layout"] != "NT") | (rows["m"] % 8 == 0)
    flops = 2.0 * rows["batch"] * rows["m"] * rows["n"] * rows["k"]
    return rows.assign(flops=flops)[aligned & (flops / (rows["time_us"] * 1e-6) <= peak)]


def fit_gemm(
    rows: pd.DataFrame, long_rows: pd.DataFrame, gpu: Gpu, dtype: str, with_cast: bool
) -> dict[str, Any]:
    """Coefficients, sustained share of peak and held-out residuals of one precision.

    ``rows`` are bursts and ``long_rows`` runs that meet the power limit; either may be empty,
    and runs alone are fitted as if they were bursts. ``with_cast``: the times include casting
    the left operand from 16 bits.

    Raises:
        InputError: when neither holds enough rows.
    """
    peak = gpu.peak(dtype)
    if len(rows) < FEWEST_ROWS:
        rows, long_rows = long_rows, rows
    rows, long_rows = usable_rows(rows, peak), usable_rows(long_rows, peak)
    if not len(long_rows):
        long_rows = rows[rows["flops"] >= LONG_BURST_FLOPS]
    rows = rows[(rows["layout"] != "NT") & (rows["flops"] <= LONGEST_BURST_FLOPS)]
    enough_rows(len(rows))
    per_sm = peak / gpu.sms
    bandwidth, granule = gpu.memory_bandwidth_bytes_per_s, gemm.inner_granule(dtype)
    rates = gemm.GemmRates(gpu.sms, per_sm, bandwidth, per_sm, np.inf, inner_granule=granule)
    element = gemm.ELEMENT_BYTES[dtype]
    train, test = split_by_weights(rows)
    tiles = gpu.architecture.gemm_tiles
    parameters = [Parameter(name, 0.7, 0.1, gemm.LOOP_CEILING, log=False) for name in tiles]
    parameters += PARAMETERS
    parameters += [CAST_EFFICIENCY] if with_cast else []
    parameters += [BATCHED] if (train["batch"] > 1).any() else []

    def log_error(part: pd.DataFrame, encoded: gemm.Floats, limit: float = np.inf) -> gemm.Floats:
        values = decode(parameters, encoded)
        cast = values.pop(CAST_EFFICIENCY.name, None)
        state = dataclasses.replace(rates, sustained_flops_per_s=limit)
        coefficients = gemm_coefficients(tiles, values)
        seconds = burst_seconds(part, coefficients, state, element, cast)
        logs: gemm.Floats = np.log(seconds * 1e6 / part["time_us"].to_numpy(np.float64))
        return logs

    sample = balanced(train)
    starts = [
        {"epilogue_s_per_element": epilogue} | dict.fromkeys(tiles, efficiency)
        for epilogue in EPILOGUE_STARTS
        for efficiency in EFFICIENCY_STARTS
    ]
    solution = solve(parameters, lambda encoded: log_error(sample, encoded), starts)
    errors = log_error(test, solution)
    large = test["flops"].to_numpy() >= 1e10
    report: dict[str, Any] = {"rows_train": len(train), "held_out": residuals(errors)}
    if large.any():
        report["held_out_flops_1e10"] = residuals(errors[large])
    values = rounded(decode(parameters, solution))
    cast = values.pop(CAST_EFFICIENCY.name, None)
    part: dict[str, Any] = {
        "coefficients": dataclasses.asdict(gemm_coefficients(tiles, values)),
        "residuals": report,
    }
    if cast is not None:
        part[CAST_EFFICIENCY.name] = cast
    powered = long_rows[long_rows["flops"] >= SMALLEST_POWERED_FLOPS]
    if len(powered) >= FEWEST_ROWS:
        part["sustained"] = _sustained(
            powered, peak, lambda p, limit: log_error(p, solution, limit)
        )
    return part


def _sustained(rows: pd.DataFrame, peak: float, log_error: Any) -> dict[str, Any]:
    """The share of peak that power feeds for long, and its residuals on unseen (n, k)."""
    train, test = split_by_weights(rows)
    sample = balanced(train)
    found = solve(
        [SUSTAINED], lambda encoded: log_error(sample, SUSTAINED.decode(encoded[0]) * peak)
    )
    fraction = float(f"{SUSTAINED.decode(found[0]):.4g}")
    held = test if len(test) else train
    return {
        SUSTAINED.name: fraction,
        "rows": len(rows),
        "residuals": {"held_out": residuals(log_error(held, fraction * peak))},
    }


def split_by_weights(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit, and rows of (n, k) pairs the fit never sees."""
    pairs = rows[["n", "k"]].drop_duplicates()
    held = pairs.sample(frac=HELD_OUT_SHARE, random_state=0)
    index = rows.set_index(["n", "k"]).index.isin(held.set_index(["n", "k"]).index)
    return rows[~index], rows[index]


def balanced(rows: pd.DataFrame) -> pd.DataFrame:
    """At most ``FIT_ROWS`` rows in which every half decade of FLOPs has an equal say.

    Tables hold mostly small shapes, training spends its time in large ones.
    """
    decade = (2 * np.log10(rows["flops"])).round()
    quota = FIT_ROWS // decade.nunique()
    shuffled = rows.sample(frac=1.0, random_state=0)
    chosen: pd.DataFrame = shuffled[shuffled.groupby(decade).cumcount() < quota]
    return chosen
