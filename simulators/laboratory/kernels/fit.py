"""Fit kernel coefficients to measured tables and write ``fitted/<gpu>.yaml``.

    trainscout kernels fit gemm.csv.gz --where gpu=H200-SXM-141GB \
        --where impl=trtllm-1.3.0rc20/torch_flow --source "..." \\
        --output simulators/predictor/kernels/fitted
    trainscout kernels fit attention.csv.gz my_products.csv       # prints YAML

What a table holds is recognised from its columns (``measured_rows.py``), the GPU and the
precision from its rows: every GPU and precision with enough rows is fitted on its own.
``--where column=a,b`` keeps rows whose value is one of the listed ones. Rows flagged as
outliers, above peak, or host-timed below what the host resolves are dropped.

Held-out residuals (unseen weight shapes for products, cross-validation over shapes for
attention) are printed and written beside the coefficients, with the command and the source.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from trainscout.conf.catalogue import declared_gpus
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import write_output
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.kernels.attention import WIDE_HEAD, attention_seconds
from trainscout.simulators.predictor.kernels.batch_prices import price_batch
from trainscout.simulators.predictor.kernels.coefficients import (
    ATTENTION_CLASS,
    ATTENTION_SECTIONS,
    PRECISION_CLASS,
    AttentionCoefficients,
    GroupedCoefficients,
)
from trainscout.simulators.predictor.kernels.gemm import ELEMENT_BYTES, LOOP_CEILING
from trainscout.simulators.predictor.kernels.measured_rows import (
    CAST_INCLUDED,
    TRAINING_DTYPES,
    attention_kernel,
    match_gpu,
    read_tables,
    streaming_bytes,
    streaming_kind,
    sustained,
    unusable,
)
from trainscout.simulators.predictor.kernels.row_batches import (
    ALIKE,
    ATTENTION_SHAPE,
    attention_flops,
    grouped_batches,
)
from trainscout.simulators.predictor.kernels.streaming import MOVES_BYTES, streaming_seconds
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

from .fit_gemm import HELD_OUT_SHARE, LONGEST_BURST_FLOPS, enough_rows, fit_gemm
from .regression import Floats, Parameter, cross_validated, decode, residuals, rounded, solve

if TYPE_CHECKING:
    import pandas as pd

ATTENTION_ROWS = 1500
# Rows of one pass against the pass with the fewest.
MOST_OF_A_PASS = 4
PASSES = ("fwd", "bwd")
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
_ATTENTION_START = np.array([p.encode(p.start) for p in ATTENTION_PARAMETERS])


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
    """Coefficients of the passes the rows hold, and residuals by pass from five-fold
    cross-validation over (heads, head size, sequence length) groups.

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
    quota = ATTENTION_ROWS if rows["pass"].nunique() == 1 else MOST_OF_A_PASS * scarcest
    shuffled = rows.sample(frac=1.0, random_state=0)
    rows = shuffled[shuffled.groupby("pass").cumcount() < quota]
    present = [name for name in PASSES if rows["pass"].str.contains(name, regex=False).any()]
    parameters = list(ATTENTION_PARAMETERS) * len(present)
    start = np.tile(_ATTENTION_START, len(present))
    size = len(ATTENTION_PARAMETERS)

    def passes(encoded: Floats) -> dict[str, AttentionCoefficients]:
        return {
            name: AttentionCoefficients(
                **decode(ATTENTION_PARAMETERS, encoded[index * size : (index + 1) * size])
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


PAGING_FREE_TOKENS = 8192
FITTED_CLASSES = ("gemm", "grouped_gemm", "attention", "streaming")


def select(kind: str, rows: pd.DataFrame, where: Sequence[str]) -> pd.DataFrame:
    """Usable rows that pass every ``column=a,b`` condition.

    Raises:
        InputError: for a condition on a column that is not there.
    """
    for condition in where:
        column, _, values = condition.partition("=")
        if column not in rows.columns:
            raise InputError("--where", condition, "names no column", list(rows.columns))
        rows = rows[rows[column].astype(str).isin(values.split(","))]
    usable: pd.DataFrame = rows[unusable(kind, rows) == ""]
    return usable


def sections(
    kind: str, rows: pd.DataFrame, gpus: Mapping[str, Gpu], serve: str | None
) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """(declared GPU, section, dtype or streaming class, rows) of everything a table can fit.

    ``serve`` names the GPU whose file the coefficients are for, when it is not the one measured.
    """
    matched = {str(name): match_gpu(str(name), gpus)[0] for name in rows["gpu"].unique()}
    rows = rows.assign(
        declared=serve or rows["gpu"].astype(str).map(matched),
        precision=rows["dtype"].astype(str).map(TRAINING_DTYPES).map(PRECISION_CLASS),
    )
    rows = rows[(rows["declared"] != "") & ((kind == "streaming") | rows["precision"].notna())]
    import pandas as pd

    if kind == "streaming":
        names = zip(rows["op"], rows["pass"], rows["impl"], strict=True)
        rows = rows.assign(precision=[streaming_kind(*name) for name in names], section=kind)
        rows = rows[rows["precision"] != ""]
    elif kind in ("gemm", "grouped_gemm"):
        rows = rows.assign(section={"gemm": "gemm", "grouped_gemm": "grouped"}[kind])
    else:
        kernels = {name: attention_kernel(name) for name in rows["impl"].unique()}
        rows = rows.assign(section=rows["impl"].map(kernels).map(ATTENTION_SECTIONS))
        kernel = rows["impl"].map(kernels)
        newest = rows["declared"].map(lambda name: gpus[name].architecture.newest_attention)
        rows.loc[kernel == newest, "section"] = ATTENTION_SECTIONS["flash"]
        rows.loc[rows["dtype"] == "mxfp8", "precision"] = ATTENTION_CLASS["mxfp8"]
        rows = pd.concat([rows, _serving_as_training(rows, gpus)])
        rows = rows[rows["section"].notna()]
    for (declared, section, precision), part in rows.groupby(["declared", "section", "precision"]):
        gpu = gpus[str(declared)]
        dtype = next((name for name in ("bf16", "fp16") if name in gpu.peak_flops), "bf16")
        dtype = dtype if precision == "half" else str(precision)
        if kind == "streaming" or dtype.removesuffix("_block") in gpu.peak_flops:
            yield str(declared), str(section), dtype, part


def _serving_as_training(rows: pd.DataFrame, gpus: Mapping[str, Gpu]) -> pd.DataFrame:
    """Long paged prefills of GPUs whose newest attention is FlashAttention-2, a second time, as
    forward rows of the training kernel.

    Both run FlashAttention-2 there, and from 8192 tokens on paging no longer shows: 204 against
    205 TFLOPS, causal, heads of 128 (aiconfigurator, SGLang; ring-flash-attention, A100).
    """
    newest = rows["declared"].map(lambda name: gpus[name].architecture.newest_attention)
    paged = rows["impl"].str.contains("flash_attn|flash_attention")
    full = (rows["seq_q"] == rows["seq_k"]) & (rows["seq_q"] >= PAGING_FREE_TOKENS)
    serving = rows["section"] == ATTENTION_SECTIONS["serving"]
    return rows[(newest == "flash2") & paged & full & serving].assign(
        section=ATTENTION_SECTIONS["flash"]
    )


def fit_section(
    section: str, rows: pd.DataFrame, gpu: Gpu, dtype: str, one_state: bool
) -> dict[str, Any]:
    """Coefficients and residuals of one section of a fitted file.

    ``one_state``: products at the power limit and bursts are fitted alike.

    Raises:
        InputError: when too few rows are usable.
    """
    if section == "gemm":
        rows = rows[~draws_little_power(rows)]
        long_run = sustained(rows) & (not one_state)
        with_cast = bool(rows["dtype"].isin(CAST_INCLUDED).all())
        return fit_gemm(rows[~long_run], rows[long_run], gpu, dtype, with_cast)
    if section == "grouped":
        return fit_grouped(rows, gpu, dtype)
    if section == "streaming":
        return fit_streaming(rows, gpu, dtype)
    return fit_attention(rows, gpu, dtype)


def draws_little_power(rows: pd.DataFrame) -> pd.Series:
    """Large products of uninitialised weights: few toggling bits, so faster than real ones."""
    flops = 2.0 * rows["batch"] * rows["m"] * rows["n"] * rows["k"]
    return rows["flag"].str.contains("uninit_w") & (flops > LONGEST_BURST_FLOPS)


def merge(content: dict[str, Any], gpu: Gpu, section: str, precision: str, part: Any) -> None:
    """Add or replace one section of a fitted file's content."""
    content["gpu"] = {
        "name": gpu.name,
        "architecture": gpu.architecture.name,
        "vendor": gpu.architecture.vendor,
        "sms": gpu.sms,
        "memory_bandwidth_bytes_per_s": float(gpu.memory_bandwidth_bytes_per_s),
        "peak_flops": {name: float(rate) for name, rate in gpu.peak_flops.items()},
    }
    content.setdefault(section, {})[precision] = part


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = command_parser(
        "kernels fit",
        "Fit the coefficients that price kernels to measured times, GPU by GPU.",
        "trainscout kernels fit measured/h200/*.csv     # shows the YAML\n"
        "trainscout kernels fit gemm.csv.gz --where gpu=H200-SXM-141GB \\\n"
        "    --source 'our own, 2026' --output simulators/predictor/kernels/fitted",
    )
    options.add_argument("tables", type=Path, nargs="+", help="CSV files of measured times")
    options.add_argument("--where", action="append", default=[], help="column=value[,value]")
    options.add_argument("--source", default="", help="who measured the rows, and how")
    options.add_argument("--gpus", type=Path, help="folder of GPU declarations")
    options.add_argument("--serve", help="declared GPU the coefficients are for, if not the rows'")
    options.add_argument(
        "--one-state", action="store_true", help="fit bursts and long runs of products alike"
    )
    options.add_argument("--output", type=Path, help="folder of fitted files to add to")
    return options


def main(arguments: Sequence[str]) -> int:
    """Fit every section the tables hold; write them, or print them without ``--output``.

    Raises:
        InputError: for an unusable table or condition, when nothing could be fitted, or for a
            folder that cannot be written.
    """
    options = parser().parse_args(arguments)
    gpus = declared_gpus(options.gpus)
    if options.serve is not None and options.serve not in gpus:
        raise InputError("--serve", options.serve, "is not declared", sorted(gpus))
    if options.output is not None and not options.output.is_dir():
        raise InputError("--output", options.output, "is not an existing folder")
    # Machine paths say nothing to a reader; a table's own name does.
    tables = {str(path) for path in options.tables}
    shown = [Path(word).name if word in tables else word for word in arguments]
    command = shlex.join(["trainscout", "kernels", "fit", *shown])
    contents: dict[str, dict[str, Any]] = {}
    for table, kind, rows in [
        (path, *each) for path in options.tables for each in read_tables(path)
    ]:
        if kind not in FITTED_CLASSES:
            raise InputError("table", table, f"holds {kind}, which is not fitted", FITTED_CLASSES)
        for name, section, dtype, part_rows in sections(
            kind, select(kind, rows, options.where), gpus, options.serve
        ):
            try:
                part = fit_section(section, part_rows, gpus[name], dtype, options.one_state)
            except InputError as error:
                print(f"{name} {section} {dtype}: {error}", file=sys.stderr)
                continue
            part |= {"command": command, "source": options.source, "rows": len(part_rows)}
            measured = {match_gpu(str(gpu), gpus)[0] for gpu in part_rows["gpu"].unique()}
            if name not in measured:
                part["transferred_from"] = ", ".join(sorted(measured))
            content = contents.setdefault(name, _existing(options.output, name))
            merge(content, gpus[name], section, PRECISION_CLASS.get(dtype, dtype), part)
            shown_residuals = {k: part[k] for k in ("residuals", "sustained") if k in part}
            print(yaml.safe_dump({f"{name} {section} {dtype}": shown_residuals}, sort_keys=False))
    if not contents:
        raise InputError("rows", 0, "could be fitted: no GPU and precision has enough usable rows")
    for name, content in contents.items():
        text = yaml.safe_dump(content, sort_keys=False, width=99)
        if options.output is None:
            print(text, end="")
        else:
            write_output("--output", options.output / f"{name}.yaml", text)
    return OK


def _existing(output: Path | None, name: str) -> dict[str, Any]:
    path = output / f"{name}.yaml" if output else None
    if path is None or not path.exists():
        return {}
    return read_yaml(path, "--output") or {}


GROUPED_PARAMETERS = (
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
        coefficients = GroupedCoefficients(**decode(GROUPED_PARAMETERS, encoded))
        seconds = np.zeros(len(part))
        for positions in part.groupby(ALIKE["grouped_gemm"], sort=False).indices.values():
            for batch in grouped_batches(part.iloc[positions], dtype):
                prices = price_batch(gpu, batch, as_training=False, grouped_as=coefficients)
                seconds[positions] += prices.seconds
        logs: Floats = np.log(seconds * 1e6 / part["time_us"].to_numpy(np.float64))
        return logs

    def fitted(part: pd.DataFrame) -> Floats:
        return solve(GROUPED_PARAMETERS, lambda encoded: log_error(part, encoded))

    def unseen(out: pd.DataFrame, others: pd.DataFrame) -> Floats:
        return log_error(out, fitted(others))

    coefficients = GroupedCoefficients(**rounded(decode(GROUPED_PARAMETERS, fitted(rows))))
    return {
        "coefficients": dataclasses.asdict(coefficients),
        "residuals": cross_validated(rows, ["groups", "n", "k"], "stage", unseen),
    }


_MOST_ROWS = 3000
# Smaller ones say more about the launch than about the bandwidth.
SMALLEST_BYTES = 3e7
_STREAMED = (
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
    order = np.random.default_rng(0).permutation(len(moved))[:_MOST_ROWS]
    moved, times_s = moved[order], times_s[order]
    sizes = np.unique(moved)
    held_sizes = np.random.default_rng(0).permutation(sizes)[: int(HELD_OUT_SHARE * len(sizes))]
    held = np.isin(moved, held_sizes)

    def log_error(encoded: Floats, part: Any) -> Floats:
        values = decode(_STREAMED, encoded)
        seconds = streaming_seconds(
            moved[part], 1.0, values["share"], values["launch_s"], kind in MOVES_BYTES, gpu
        )
        logs: Floats = np.log(seconds / times_s[part])
        return logs

    solution = solve(_STREAMED, lambda encoded: log_error(encoded, ~held))
    return {
        **rounded(decode(_STREAMED, solution)),
        "residuals": {"held_out": residuals(log_error(solution, held))},
    }
