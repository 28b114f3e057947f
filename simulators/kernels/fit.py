"""Fit kernel coefficients to a measured table and write ``fitted/<gpu>.yaml``.

    python -m simulators.kernels.fit gemm gemm.csv.gz --gpu conf/gpu/h200.yaml --precision half \
        --where gpu=H200-SXM-141GB --where dtype=bf16 --where impl=vllm-0.22.0/vllm_default \
        --max-flops 1e12 --source "..." --output simulators/kernels/fitted/h200.yaml
    python -m simulators.kernels.fit attention attention.csv.gz ... (same options)

Tables are CSV (optionally gzipped). GEMM columns: m, n, k, batch, layout, time_us, and those
named by ``--where``. Attention columns: pass (fwd, bwd, fwd+bwd), batch, heads, kv_heads,
seq_q, seq_k, head_dim, head_dim_v, causal, time_us, tflops. ``--where column=a,b`` keeps rows
whose value is one of the listed ones. Rows marked ``outlier`` or ``above_peak_table`` in a
``flag`` column, and rows faster than the GPU's peak, are dropped.

The loss is soft-L1 on log(predicted / measured), so a factor too fast weighs as much as a
factor too slow and stray rows do not steer. GEMM residuals are on unseen (n, k) pairs,
attention residuals from five-fold cross-validation.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from simulators.errors import InputError
from simulators.job import Gpu
from simulators.kernels.attention import attention_seconds
from simulators.kernels.coefficients import (
    PRECISION_CLASS,
    AttentionCoefficients,
    GemmCoefficients,
)
from simulators.kernels.gemm import (
    ELEMENT_BYTES,
    LOOP_CEILING,
    Floats,
    GemmRates,
    compute_seconds,
    join,
    tile_variants,
)

if TYPE_CHECKING:
    import pandas as pd

FIT_ROWS = 4000
FEWEST_ROWS = 15
HELD_OUT_SHARE = 0.2
# Shorter host-timed rows measure the host, not the kernel; a table of efficiencies
# (``from_eff``) was host-timed too.
HOST_TIMED_FLOOR_US = 150.0
TEXT_COLUMNS = ("layout", "pass")
LAUNCH_BOUNDS_S = (1e-6, 5e-6)

TILES = {
    "volta": ("128x256", "128x128", "64x128", "64x64"),
    "ampere": ("128x256", "128x128", "64x256", "64x128", "64x64"),
    "hopper": ("128x256", "128x192", "128x128", "64x256", "64x128", "64x64"),
    "blackwell": ("256x256", "128x256", "128x192", "128x128", "64x256", "64x128", "64x64"),
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One scalar to fit: start value and bounds; ``log`` fits its logarithm."""

    name: str
    start: float
    low: float
    high: float
    log: bool = True

    def encode(self, value: float) -> float:
        return float(np.log(value)) if self.log else value

    def decode(self, value: float) -> float:
        return float(np.exp(value)) if self.log else float(value)


GEMM_PARAMETERS = (
    Parameter("partial_wave", 0.5, 0.0, 1.0, log=False),
    Parameter("tile_latency_s", 1e-6, 1e-8, 1e-5),
    Parameter("epilogue_s_per_element", 2e-11, 1e-13, 1e-9),
    Parameter("l2_bytes_per_s_per_sm", 8e10, 1e10, 1e12),
    Parameter("dram_efficiency", 0.85, 0.5, 1.0, log=False),
    Parameter("split_traffic", 1.0, 0.3, 10.0),
    Parameter("overlap_exponent", 3.0, 1.2, 8.0),
    Parameter("launch_s", 2e-6, *LAUNCH_BOUNDS_S),
)
# Serving tables time the activation's 16-bit to fp8 cast with the product. It is its own
# operation here, so it is fitted beside the product and left out of the coefficients.
CAST_EFFICIENCY = Parameter("cast_dram_efficiency", 0.5, 0.02, 1.0)
CAST_BYTES = 3
ATTENTION_PARAMETERS = (
    Parameter("efficiency", 0.7, 0.1, LOOP_CEILING, log=False),
    Parameter("softmax_s_per_score", 2e-11, 1e-13, 1e-9),
    Parameter("partial_wave", 0.5, 0.0, 1.0, log=False),
    Parameter("item_latency_s", 1e-6, 1e-8, 3e-5),
    Parameter("dram_efficiency", 0.6, 0.2, 1.0, log=False),
    Parameter("causal_overhead_tokens", 500.0, 64.0, 4000.0),
    Parameter("wide_head_factor", 1.1, 1.0, 2.0),
    Parameter("launch_s", 3e-6, 1e-6, 1e-5),
)


def load_gpu(path: Path) -> Gpu:
    """A GPU declaration (the fields of ``Gpu`` as flat YAML).

    Raises:
        InputError: when the file is not such a declaration.
    """
    from omegaconf import OmegaConf

    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
        gpu = Gpu(**content)  # type: ignore[arg-type]
    except (OSError, TypeError) as error:
        raise InputError("--gpu", path, f"is not a GPU declaration ({error})") from error
    gpu.check()
    return gpu


def read_rows(table: Path, where: Sequence[str], required: Sequence[str]) -> pd.DataFrame:
    """Rows of a table that pass every ``column=a,b`` condition.

    Raises:
        InputError: for an unreadable table, a missing or non-numeric column, or too few rows.
    """
    import pandas as pd

    try:
        rows = pd.read_csv(table, low_memory=False)
    except (OSError, ValueError) as error:
        raise InputError("table", table, f"cannot be read ({error})") from error
    for name in required:
        if name not in rows.columns:
            raise InputError("table", table, f"has no column {name!r}", list(rows.columns))
        if name not in TEXT_COLUMNS and rows[name].dtype.kind not in "iuf":
            raise InputError("table", table, f"has text in the numeric column {name!r}")
    for condition in where:
        column, _, values = condition.partition("=")
        if column not in rows.columns:
            raise InputError("--where", condition, "names no column", list(rows.columns))
        rows = rows[rows[column].astype(str).isin(values.split(","))]
    if "flag" in rows.columns:
        flag = rows["flag"].fillna("").astype(str)
        host = flag.str.contains("host_timed|from_eff") & (rows["time_us"] < HOST_TIMED_FLOOR_US)
        rows = rows[~flag.str.contains("outlier|above_peak_table") & ~host]
    rows = rows[rows["time_us"] > 0]
    enough_rows(rows)
    return rows


def enough_rows(rows: pd.DataFrame) -> None:
    """Refuse a selection too small to fit.

    Raises:
        InputError: with how many usable rows there are.
    """
    if len(rows) < FEWEST_ROWS:
        problem = "usable rows are too few to fit; loosen --where or --max-flops"
        raise InputError("rows", len(rows), problem, f">= {FEWEST_ROWS}")


def solve(
    parameters: Sequence[Parameter],
    log_error: Callable[[NDArray[np.float64]], Floats],
) -> NDArray[np.float64]:
    """Bounded soft-L1 least squares on log errors; returns the encoded parameters."""
    from scipy.optimize import least_squares

    low = np.array([p.encode(p.low) if p.low > 0 or not p.log else -np.inf for p in parameters])
    high = np.array([p.encode(p.high) for p in parameters])
    start = np.array([p.encode(p.start) for p in parameters])
    scale = np.where([p.log for p in parameters], 1.0, 0.3)
    solution = least_squares(
        log_error,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.05,
        x_scale=scale,
        max_nfev=200,
    )
    encoded: NDArray[np.float64] = solution.x
    return encoded


def decode(parameters: Sequence[Parameter], encoded: NDArray[np.float64]) -> dict[str, float]:
    """Parameter values by name."""
    return {p.name: p.decode(value) for p, value in zip(parameters, encoded, strict=True)}


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Values to five digits, which is more than the data can carry; nested maps alike."""
    return {
        name: rounded(value) if isinstance(value, dict) else float(f"{value:.5g}")
        for name, value in values.items()
    }


def residuals(log_error: Floats) -> dict[str, float | int]:
    """Median and 90th percentile of |predicted / measured - 1|, and the signed median."""
    relative = np.abs(np.expm1(log_error))
    return {
        "rows": len(log_error),
        "median": round(float(np.median(relative)), 4),
        "p90": round(float(np.quantile(relative, 0.9)), 4),
        "bias": round(float(np.expm1(np.median(log_error))), 4),
    }


def gemm_coefficients(tiles: Sequence[str], values: dict[str, float]) -> GemmCoefficients:
    """Split fitted values into tile efficiencies and the rest."""
    rest = {name: value for name, value in values.items() if name not in tiles}
    return GemmCoefficients(tile_efficiency={name: values[name] for name in tiles}, **rest)


def gemm_log_error(
    rows: pd.DataFrame,
    coefficients: GemmCoefficients,
    rates: GemmRates,
    element: int,
    cast_efficiency: float | None,
) -> Floats:
    """log(predicted / measured) of forward or input-gradient rows, shape (rows,).

    ``cast_efficiency`` None: the times hold the product alone.
    """
    m, n, k, batch = (rows[name].to_numpy(np.float64) for name in ("m", "n", "k", "batch"))
    variants = tile_variants(coefficients, rates)
    compute = compute_seconds(m, n, k, batch, element, variants, coefficients, rates)
    dram_bytes = batch * (element * k * (m + n) + max(element, 2) * m * n)
    dram = dram_bytes / (rates.dram_bytes_per_s * coefficients.dram_efficiency)
    seconds = join(compute, dram, coefficients.overlap_exponent) + coefficients.launch_s
    if cast_efficiency is not None:
        seconds += CAST_BYTES * batch * m * k / (rates.dram_bytes_per_s * cast_efficiency)
    logs: Floats = np.log(seconds * 1e6 / rows["time_us"].to_numpy(np.float64))
    return logs


def fit_gemm(
    rows: pd.DataFrame, gpu: Gpu, precision: str, with_cast: bool = False
) -> dict[str, Any]:
    """Coefficients and held-out residuals of one precision class.

    ``with_cast``: the times include casting the left operand from 16 bits. Only aligned
    forward or input-gradient rows are used: the weight-gradient and alignment factors are
    separate published ratios (``gemm.py``).
    """
    dtype = "bf16" if precision == "half" and "bf16" in gpu.peak_flops else precision
    dtype = "fp16" if dtype == "half" else dtype
    peak = gpu.peak(dtype)
    per_sm = peak / gpu.sms
    rates = GemmRates(gpu.sms, per_sm, gpu.memory_bandwidth_bytes_per_s, per_sm)
    element = ELEMENT_BYTES[dtype]
    aligned = (rows["k"] % 8 == 0) & (rows["n"] % 8 == 0)
    rows = rows[aligned & (rows["layout"] != "NT")]
    flops = 2.0 * rows["batch"] * rows["m"] * rows["n"] * rows["k"]
    rows = rows.assign(flops=flops)[flops / (rows["time_us"] * 1e-6) <= peak]
    enough_rows(rows)
    pairs = rows[["n", "k"]].drop_duplicates()
    held = pairs.sample(frac=HELD_OUT_SHARE, random_state=0)
    index = rows.set_index(["n", "k"]).index.isin(held.set_index(["n", "k"]).index)
    train, test = rows[~index], rows[index]
    # Tables hold mostly small shapes, training spends its time in large ones: every half
    # decade of FLOPs gets an equal say, as far as it has rows.
    decade = (2 * np.log10(train["flops"])).round()
    quota = FIT_ROWS // decade.nunique()
    shuffled = train.sample(frac=1.0, random_state=0)
    sample = shuffled[shuffled.groupby(decade).cumcount() < quota]
    tiles = TILES[gpu.architecture]
    parameters = [Parameter(name, 0.8, 0.1, LOOP_CEILING, log=False) for name in tiles]
    parameters += GEMM_PARAMETERS
    parameters += [CAST_EFFICIENCY] if with_cast else []

    def log_error(part: pd.DataFrame, encoded: NDArray[np.float64]) -> Floats:
        values = decode(parameters, encoded)
        cast = values.pop(CAST_EFFICIENCY.name, None)
        return gemm_log_error(part, gemm_coefficients(tiles, values), rates, element, cast)

    solution = solve(parameters, lambda encoded: log_error(sample, encoded))
    errors = log_error(test, solution)
    large = test["flops"].to_numpy() >= 1e10
    report: dict[str, Any] = {"rows_train": len(train), "held_out": residuals(errors)}
    if large.any():
        report["held_out_flops_1e10"] = residuals(errors[large])
    values = rounded(decode(parameters, solution))
    cast = values.pop(CAST_EFFICIENCY.name, None)
    coefficients = dataclasses.asdict(gemm_coefficients(tiles, values))
    part = {"coefficients": coefficients, "residuals": report}
    return part if cast is None else part | {CAST_EFFICIENCY.name: cast}


def attention_log_error(
    rows: pd.DataFrame, passes: dict[str, AttentionCoefficients], gpu: Gpu, dtype: str
) -> Floats:
    """log(predicted / measured); a ``fwd+bwd`` row is the sum of both passes."""
    columns = ["batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal"]
    shapes = rows[columns].to_numpy(np.int64)
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


def fit_attention(rows: pd.DataFrame, gpu: Gpu, precision: str) -> dict[str, Any]:
    """Coefficients of both passes and cross-validated residuals by pass."""
    dtype = "bf16" if precision == "half" else precision
    flops = 2.0 * rows["batch"] * rows["heads"] * rows["seq_q"] * rows["seq_k"]
    flops *= (rows["head_dim"] + rows["head_dim_v"]) * np.where(rows["causal"] > 0, 0.5, 1.0)
    flops *= rows["pass"].map({"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5})
    # A rate that disagrees with the shape means a window or a varlen batch, not full attention.
    rate = flops / rows["time_us"] / 1e6
    rows = rows[(np.abs(rate / rows["tflops"] - 1) < 0.1) & (rate * 1e12 <= gpu.peak(dtype))]
    enough_rows(rows)
    names = [p.name for p in ATTENTION_PARAMETERS]
    parameters = list(ATTENTION_PARAMETERS) * 2
    start = np.array([p.encode(p.start) for p in parameters])

    def passes(encoded: NDArray[np.float64]) -> dict[str, AttentionCoefficients]:
        half = len(names)
        return {
            name: AttentionCoefficients(**decode(ATTENTION_PARAMETERS, part))
            for name, part in (("fwd", encoded[:half]), ("bwd", encoded[half:]))
        }

    def fitted(part: pd.DataFrame) -> dict[str, AttentionCoefficients]:
        def log_error(encoded: NDArray[np.float64]) -> Floats:
            # A weak pull to the start keeps directions the rows do not see (the split of a
            # fwd+bwd time, the softmax share at one head size) at plausible values.
            pull = 0.02 * (encoded - start)
            return np.concatenate([attention_log_error(part, passes(encoded), gpu, dtype), pull])

        return passes(solve(parameters, log_error))

    order = np.random.default_rng(0).permutation(len(rows))
    errors = np.zeros(len(rows))
    for fold in range(5):
        out = order[fold::5]
        kept = np.setdiff1d(order, out)
        errors[out] = attention_log_error(rows.iloc[out], fitted(rows.iloc[kept]), gpu, dtype)
    report = {
        str(name): residuals(errors[(rows["pass"] == name).to_numpy()])
        for name in sorted(rows["pass"].unique())
    }
    coefficients = {name: dataclasses.asdict(value) for name, value in fitted(rows).items()}
    return {"coefficients": rounded(coefficients), "residuals": {"cross_validated": report}}


def write_section(output: Path, gpu: Gpu, section: str, precision: str, part: Any) -> None:
    """Add or replace one section of a fitted file, written whole or not at all."""
    content: dict[str, Any] = {}
    if output.exists():
        content = yaml.safe_load(output.read_text("utf-8")) or {}
    content["gpu"] = {
        "name": gpu.name,
        "architecture": gpu.architecture,
        "sms": gpu.sms,
        "peak_flops": {name: float(rate) for name, rate in gpu.peak_flops.items()},
    }
    content.setdefault(section, {})[precision] = part
    text = yaml.safe_dump(content, sort_keys=False, width=99)
    whole = output.with_name(output.name + ".tmp")
    whole.write_text(text, encoding="utf-8")
    os.replace(whole, output)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m simulators.kernels.fit")
    options.add_argument("kind", choices=("gemm", "attention"))
    options.add_argument("table", type=Path, help="CSV of measured times")
    options.add_argument("--gpu", type=Path, required=True, help="GPU declaration (YAML)")
    options.add_argument(
        "--precision", choices=sorted(set(PRECISION_CLASS.values())), required=True
    )
    options.add_argument("--where", action="append", default=[], help="column=value[,value]")
    options.add_argument("--max-flops", type=float, help="drop larger GEMMs")
    options.add_argument(
        "--with-cast", action="store_true", help="times include casting the activation to fp8"
    )
    options.add_argument("--source", required=True, help="who measured the rows, and how")
    options.add_argument(
        "--measured-on", type=Path, help="declaration of the GPU the rows are from, if not --gpu"
    )
    options.add_argument("--output", type=Path, required=True, help="fitted/<gpu>.yaml")
    return options


def main(arguments: Sequence[str]) -> None:
    """Run one fit and write its section.

    Raises:
        InputError: for an unusable table, GPU or condition.
    """
    options = parser().parse_args(arguments)
    gpu = load_gpu(options.gpu)
    measured = load_gpu(options.measured_on) if options.measured_on else gpu
    if not options.output.parent.is_dir():
        raise InputError("--output", options.output, "is not in an existing folder")
    required = ["time_us"]
    if options.kind == "gemm":
        required += ["m", "n", "k", "batch", "layout"]
    else:
        required += ["pass", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim"]
        required += ["head_dim_v", "causal", "tflops"]
    rows = read_rows(options.table, options.where, required)
    if options.max_flops is not None and options.kind == "gemm":
        rows = rows[2.0 * rows["batch"] * rows["m"] * rows["n"] * rows["k"] <= options.max_flops]
    if options.kind == "gemm":
        part = fit_gemm(rows, measured, options.precision, options.with_cast)
    else:
        part = fit_attention(rows, measured, options.precision)
    # Machine paths say nothing to a reader; the table's own name does.
    shown = [Path(a).name if a == str(options.table) else a for a in arguments]
    part["command"] = shlex.join(["python", "-m", "simulators.kernels.fit", *shown])
    part["source"] = options.source
    part["rows"] = len(rows)
    if options.measured_on:
        part["transferred_from"] = measured.name
    write_section(options.output, gpu, options.kind, options.precision, part)
    print(yaml.safe_dump({options.kind: part["residuals"]}, sort_keys=False), end="")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
