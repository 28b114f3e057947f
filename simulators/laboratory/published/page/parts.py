"""Kernels, collectives and overlap on the accuracy page: what each model does on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainscout.simulators.predictor.io.markdown import table

from .fits import (
    ATTENTION_BOUND,
    GEMM_BOUND,
    TARGET_GPUS,
    KernelFit,
    collective_fit_errors,
    kernel_fits,
    overlap_residuals,
)
from .headline import Report, by_size
from .markdown import (
    MET,
    SUMMARY_HEADER,
    TEXTS,
    folded,
    percent,
    signed,
    summary_cells,
    summary_table,
)
from .summaries import AVERAGED

# Longer than this a table is folded away.
_LONG = 12
# Groupings of the validator's summary that tell more than the table of the fits.
_OF_COLLECTIVES = ("by_collective", "by_cluster")


def collectives_section(summary: Report | None) -> str:
    """The model against nccl-tests results, beside NCCL's own, in sample and out of it."""
    parts = [TEXTS["collectives"], _collective_fits()]
    if summary is not None:
        parts += [
            _compared_with_nccl(summary),
            *_validator("collectives validate", summary, _OF_COLLECTIVES),
        ]
    return "\n\n".join(parts)


def _collective_fits() -> str:
    fits = collective_fit_errors()
    bands = list(next(iter(fits.values()))["by_size_band"])
    rows = [
        (
            TEXTS["fits"][title],
            fit["clusters"],
            *(percent(fit["by_size_band"].get(band)) for band in bands),
            *(percent(fit[name]) for name in ("between_nodes", "all")),
        )
        for title, fit in fits.items()
    ]
    return table(("fit", "clusters", *bands, "between nodes", "all"), rows)


def _compared_with_nccl(summary: Report) -> str:
    own = summary["nccl_model"]
    ours = own["ours_on_the_same_rows"]
    rows = [
        (name, each["overall"]["n"], percent(each[AVERAGED]), *summary_cells(each["overall"])[2:])
        for name, each in (
            ("Trainscout, every row (in sample)", summary),
            ("Trainscout, rows that NCCL's model prices (in sample)", ours),
            ("NCCL's own model on those rows", own),
        )
    ]
    header = ("model", "rows", "per cluster and band, averaged", *SUMMARY_HEADER[2:])
    return "NCCL's own cost model prices neither all-to-all nor sends.\n\n" + table(header, rows)


def kernels_section(summary: Report | None) -> str:
    """Every fitted kernel class on rows that its fit did not see."""
    fits = kernel_fits()
    rows = [
        (
            f"{fit.gpu}: {_class(fit)}",
            *(fit.state or "-", fit.rows, percent(fit.median), percent(fit.p90)),
            *(signed(fit.bias), MET[fit.met]),
        )
        for fit in fits
        if fit.bound
    ]
    header = ("GPU and class", "state", "rows", "median", "p90", "bias", "target met")
    others: dict[str, list[str]] = {}
    for fit in fits:
        if not fit.bound:
            name = ", ".join(filter(None, (_class(fit), fit.state)))
            others.setdefault(name, []).append(f"{fit.gpu} {percent(fit.median)}")
    medians = table(("class", "medians"), [(name, ", ".join(of)) for name, of in others.items()])
    aims = {"gemm": GEMM_BOUND, "attention": ATTENTION_BOUND, "gpus": ", ".join(TARGET_GPUS)}
    parts = [
        TEXTS["kernels"].format(**aims),
        table(header, rows),
        folded(f"The other {len(others)} classes, without a target", medians),
    ]
    if summary is not None:
        parts.append("Over whole tables, most of whose rows are part of the fit:")
        parts += _validator("kernels validate", summary, ())
    return "\n\n".join(parts)


def _class(fit: KernelFit) -> str:
    return fit.kernel + (f", {fit.precision}" if fit.precision else "")


def overlap_section() -> str:
    """Hit rates and RMSE of predicted slowdowns, as in Moye's table 6, and their sum by time."""
    groups = overlap_residuals()
    rows = [
        (
            f"{name}, {predictor}",
            groups[name]["n"],
            *_scores(groups[name][key]),
            _slowdown(groups[name][key]["by_time"]),
            _slowdown(groups[name]["by_time"]),
        )
        for name in TEXTS["overlap_groups"]
        for key, predictor in TEXTS["predictors"].items()
    ]
    rows += [
        (f"Moye's table 6, {gpu}", "-", _hits(of["shares"]), f"{of['rmse']:.2f}", "-", "-")
        for gpu, of in TEXTS["moye"].items()
    ]
    figures = ("within 5 / 10 / 15%", "RMSE", "weighted by time", "measured")
    return f"{TEXTS['overlap']}\n\n{table(('rows and predictor', 'rows', *figures), rows)}"


def _scores(found: Mapping[str, Any]) -> tuple[str, str]:
    return _hits(found["within_5_10_15_percent"]), f"{found['rmse']:.2f}"


def _slowdown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _hits(shares: Sequence[float]) -> str:
    return " / ".join(f"{share:.0%}" for share in shares)


def _validator(command: str, summary: Report, groupings: Sequence[str]) -> list[str]:
    """The figures of another validator: overall, and the groupings asked for, long ones folded."""
    parts = [
        f"`trainscout {command}`, on measurements that are not part of the project:",
        summary_table("", [("all", summary["overall"])]),
    ]
    for key in groupings:
        name = key.removeprefix("by_")
        groups = [each for each in by_size(summary.get(key, {})) if each[1]["n"]]
        text = summary_table(name, groups)
        parts.append(folded(f"by {name}: {len(groups)}", text) if len(groups) > _LONG else text)
    return parts
