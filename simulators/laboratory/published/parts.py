"""Kernels, collectives and overlap on the accuracy page: what each model does on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainscout.simulators.laboratory.published.fits import (
    ATTENTION_BOUND,
    GEMM_BOUND,
    TARGET_GPUS,
    collective_fit_errors,
    kernel_fits,
    overlap_residuals,
)
from trainscout.simulators.laboratory.published.headline import Report, by_size
from trainscout.simulators.laboratory.published.markdown import (
    MET,
    SUMMARY_HEADER,
    folded,
    percent,
    signed,
    summary_cells,
    table,
)
from trainscout.simulators.laboratory.published.summaries import AVERAGED

# Longer than this a table is folded away.
_LONG = 12
# Moye, table 6: shares of predictions within 5, 10 and 15 percent, and the RMSE.
_MOYE = {
    "RTX 3090": ((0.6148, 0.7362, 0.7652), 1.0935),
    "A800": ((0.6103, 0.6982, 0.7501), 0.7147),
    "H800": ((0.4318, 0.5159, 0.5773), 0.5626),
}
_FITS = {
    "shipped": "fitted to all clusters, on them (as shipped)",
    "train": "fitted to the training clusters, on them",
    "validation": "the same fit, on the validation clusters",
    "left_out": "each cluster left out of the fit in turn",
    "large": "the same, told 256 MiB of an all-reduce within and between nodes",
    "two_sizes": "the same, told 8 KiB besides",
    "two_sizes_by_gpus": "the same, told both on each number of a node's GPUs",
    "two_sizes_by_gpus_and_kind": "the same, told these of each collective",
}
_PREDICTORS = {
    "physical": "physical",
    "one factor": "one factor for everything, of the other sources",
}
_OVERLAP_GROUPS = ("all", "all but the largest source", "GPU a100_80", "GPU a800_80", "GPU h800")


def collectives_section(summary: Report | None) -> str:
    """The model against nccl-tests results, beside NCCL's own, in sample and out of it."""
    parts = [
        "## Collectives\n\nThe model's coefficients are fitted to public nccl-tests results "
        "(`trainscout collectives fit TABLE`), as shipped to all clusters of the "
        "table, so that what follows below as `trainscout collectives validate` is **in "
        "sample**. What a cluster that was never measured can expect are the rows *on the "
        "validation clusters* and *left out* of this one: medians of the absolute error per "
        "cluster and size band, averaged.",
        _collective_fits(),
    ]
    if summary is not None:
        parts += [
            _beside_nccl(summary),
            *_validator("collectives validate", summary),
        ]
    return "\n\n".join(parts)


def _collective_fits() -> str:
    fits = collective_fit_errors()
    bands = list(next(iter(fits.values()))["by_size_band"])
    rows = [
        (
            _FITS[name],
            fit["clusters"],
            *(percent(fit["by_size_band"].get(band)) for band in bands),
            percent(fit["all"]),
        )
        for name, fit in fits.items()
    ]
    return table(("fit", "clusters", *bands, "all"), rows)


def _beside_nccl(summary: Report) -> str:
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
            f"{fit.gpu}: {fit.kernel}" + (f", {fit.precision}" if fit.precision else ""),
            fit.state or "-",
            fit.split,
            fit.rows,
            percent(fit.median),
            percent(fit.p90),
            signed(fit.bias),
            MET[fit.met],
        )
        for fit in fits
    ]
    header = ("GPU and class", "state", "split", "rows", "median", "p90", "bias", "target met")
    wanted = [row for row, fit in zip(rows, fits, strict=True) if fit.bound]
    parts = [
        "## Kernels\n\nFitted per GPU and class to public measurements "
        "(`trainscout kernels fit TABLE`). These are the errors on rows that the fit "
        "did not see: products of a fifth of all weight shapes; where rows are few, "
        f"cross-validation over shapes. Aimed at: {GEMM_BOUND:.0%} for GEMMs and "
        f"{ATTENTION_BOUND:.0%} for attention on {', '.join(TARGET_GPUS)}, at every "
        "precision. `half` is BF16 and FP16; `flash2` FlashAttention-2, otherwise the best "
        "library of that GPU.",
        table(header, wanted),
        folded("Every fitted GPU and class", table(header, rows)),
    ]
    if summary is not None:
        parts += [
            "Over whole tables, most of whose rows are part of the fit, and with what no fit "
            "covers:",
            *_validator("kernels validate", summary),
        ]
    return "\n\n".join(parts)


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
        for name in _OVERLAP_GROUPS
        for key, predictor in _PREDICTORS.items()
    ]
    moye = [
        (f"Moye's table 6, {gpu}", "-", _hits(shares), f"{rmse:.2f}", "-", "-")
        for gpu, (shares, rmse) in _MOYE.items()
    ]
    header = (
        "rows and predictor",
        "rows",
        "within 5 / 10 / 15%",
        "RMSE",
        "weighted by time",
        "measured",
    )
    return (
        "## Overlap slowdown\n\nPredicted slowdowns of single kernels beside communication "
        "(`trainscout interference validate TABLE`): shares within 5, 10 and 15% of the "
        "measured slowdown, root mean square error, and slowdowns weighted by the time of the "
        "kernels alone where it is published. Nothing of the physical model, by which predictions "
        "go, is fitted to them. Moye's figures are of a learned model in five random folds of its "
        "own kernels, which are not published.\n\n" + table(header, [*rows, *moye])
    )


def _scores(found: Mapping[str, Any]) -> tuple[str, str]:
    return _hits(found["within_5_10_15_percent"]), f"{found['rmse']:.2f}"


def _slowdown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _hits(shares: Sequence[float]) -> str:
    return " / ".join(f"{share:.0%}" for share in shares)


def _validator(command: str, summary: Report) -> list[str]:
    """The figures of another validator: overall, and each grouping, long ones folded."""
    parts = [
        f"`trainscout {command}`, on measurements that are not part of the project:",
        table(("", *SUMMARY_HEADER), [("all", *summary_cells(summary["overall"]))]),
    ]
    for key, groups in summary.items():
        if not key.startswith("by_"):
            continue
        name = key.removeprefix("by_").replace("_", " ")
        rows = [(each, *summary_cells(group)) for each, group in by_size(groups)]
        text = table((name, *SUMMARY_HEADER), rows)
        parts.append(folded(f"by {name}: {len(rows)}", text) if len(rows) > _LONG else text)
    return parts
