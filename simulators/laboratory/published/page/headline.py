"""The figures a reader asks for first, and the targets they are held to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.laboratory.published.layouts import together
from trainscout.simulators.laboratory.score import Summary, summarise
from trainscout.simulators.laboratory.uncertainty.coverage import LEFT_OUT

from .fits import KernelFit, collective_fit_errors
from .summaries import AVERAGED, NCCL, SAME_ROWS

MULTI_NODE_SWEEP = "vTrain multi-node sweep"
DENSE_SETS = ("Korthikanti 2022, table 5", "Narayanan 2021, table 1", "Narayanan 2021, table 2")
B200_SET = "SimuMax, eight B200"
MIN_ROWS_OF_A_SOURCE = 8

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """What was aimed for, what was reached (both in words), and whether that is enough.

    ``met`` is None where nothing was measured.
    """

    name: str
    aim: str
    reached: str
    met: bool | None


def headline(report: Report) -> Summary:
    """Step time of every counted row."""
    errors = [
        row["error"] for row in report["rows"] if row["counted"] and row["error"] is not None
    ]
    return summarise(errors, report["overall"]["skipped"])


def targets(
    report: Report,
    coverage: Mapping[str, float],
    collectives: Report | None,
    kernels: Sequence[KernelFit],
) -> list[Target]:
    """Every target of the project, in the order of the accuracy page.

    ``coverage`` says how often error bars held runs that were left out.
    """
    return [
        *_step_time(report),
        *_sets(report),
        *_layouts(report),
        *_memory(report),
        *_error_bars(coverage),
        *targets_of_kernels(kernels),
        *_collectives(collectives),
    ]


def _step_time(report: Report) -> list[Target]:
    everything, sources = headline(report), report["by_source"]
    worst_name, worst = _worst_source(sources)
    return [
        _below("step time, median", everything.median_abs_error, 0.06),
        _below("step time, 90th percentile", everything.p90_abs_error, 0.18),
        Target(
            f"worst source with at least {MIN_ROWS_OF_A_SOURCE} rows, median",
            "at most 12.0%",
            "-" if worst is None else f"{worst:.1%} ({worst_name})",
            None if worst is None else worst <= 0.12,
        ),
        _below(MULTI_NODE_SWEEP + ", mean", _mean(sources.get(MULTI_NODE_SWEEP)), 0.10),
        _below("TorchTitan, mean", _mean(sources.get("TorchTitan")), 0.05),
    ]


def _worst_source(sources: Report) -> tuple[str, float | None]:
    medians = {
        name: summary["median_abs_error"]
        for name, summary in sources.items()
        if summary["n"] >= MIN_ROWS_OF_A_SOURCE
    }
    if not medians:
        return "", None
    worst = max(medians, key=lambda name: medians[name])
    return worst, medians[worst]


def _sets(report: Report) -> list[Target]:
    sets = report["baseline"]["sets"]
    dense = {name: sets[name] for name in DENSE_SETS if name in sets}
    rows = sum(one["ours"]["n"] for one in dense.values())
    found = [_below(f"{name}, mean", _mean(one["ours"]), 0.05) for name, one in dense.items()]
    total = None
    if rows:
        weighed = (one["ours"]["n"] * one["ours"]["mean_abs_error"] for one in dense.values())
        total = sum(weighed) / rows
    found.insert(0, _below(f"the {rows} dense A100 cases, mean", total, 0.04))
    for name, one in sets.items():
        flat = _mean(one["flat_baseline"])
        found += _beats(f"{name}: beat the flat baseline", _mean(one["ours"]), flat)
    if B200_SET in sets:
        ours, theirs = _mean(sets[B200_SET]["ours"]), _mean(sets[B200_SET]["peers"]["simumax"])
        found += _beats(f"{B200_SET}: beat SimuMax", ours, theirs)
    return found


def _layouts(report: Report) -> list[Target]:
    layouts = report["layouts"]
    found = []
    for name, ranking in layouts.items():
        if "GPT-39" in name or name.startswith("BigScience"):
            tau = ranking["kendall_tau"]
            found.append(
                Target(f"Kendall tau, {name}", "at least 0.85", f"{tau:.2f}", tau >= 0.85)
            )
    whole = together([*layouts.values()]) if layouts else {}
    aims = (("median", "selection_regret", 0.02), ("worst", "worst_regret", 0.05))
    for title, of, aim in aims:
        found.append(_below(f"selection regret, {title}", whole.get(of), aim))
    return found


def _memory(report: Report) -> list[Target]:
    """Of what the allocator handed out."""
    memory = summarise(
        [
            row["memory_error"]
            for row in report["rows"]
            if row["counted"] and row["memory_kind"] == "allocated"
        ]
    )
    return [
        _below("memory (allocated), median", memory.median_abs_error, 0.03),
        _below("memory (allocated), 90th percentile", memory.p90_abs_error, 0.08),
    ]


def _error_bars(coverage: Mapping[str, float]) -> list[Target]:
    level = coverage["level"]
    aim = f"{level - 0.05:.0%} to {level + 0.05:.0%}"
    return [
        Target(
            f"runs inside their {level:.0%} error bar, left out: {words}",
            aim,
            f"{coverage[key]:.1%}",
            abs(coverage[key] - level) <= 0.05,
        )
        for key, words in LEFT_OUT.items()
        if key in coverage
    ]


def _collectives(summary: Report | None) -> list[Target]:
    """As shipped, out of sample, and beside NCCL's own model."""
    aim, left_out = 0.10, collective_fit_errors()["left_out"]["all"]
    name = "collectives, median per cluster and size band, averaged"
    found = [_below(f"{name}, clusters left out of the fit", left_out, aim)]
    if summary is not None:
        found.insert(0, _below(f"{name}, as shipped (in sample)", summary[AVERAGED], aim))
        theirs, ours = summary[NCCL][AVERAGED], summary[NCCL][SAME_ROWS][AVERAGED]
        found += _beats("the same: beat NCCL's own model on its rows (in sample)", ours, theirs)
    return found


def targets_of_kernels(fits: Sequence[KernelFit]) -> list[Target]:
    """One line per class, precision and state: each GPU's worst median on unseen rows."""
    lines: dict[tuple[str, str, str], dict[str, KernelFit]] = {}
    for fit in fits:
        if fit.bound is not None:
            kernel = fit.section.removesuffix("_flash2")
            gpus = lines.setdefault((kernel, fit.precision, fit.state), {})
            if fit.gpu not in gpus or fit.median > gpus[fit.gpu].median:
                gpus[fit.gpu] = fit
    return [
        Target(
            "kernels, unseen rows: " + ", ".join(filter(None, (kernel, precision, state))),
            f"at most {next(iter(gpus.values())).bound:.1%}",
            ", ".join(f"{gpu} {fit.median:.1%}" for gpu, fit in gpus.items()),
            all(fit.met for fit in gpus.values()),
        )
        for (kernel, precision, state), gpus in lines.items()
    ]


def _mean(summary: Report | None) -> float | None:
    return None if summary is None else summary["mean_abs_error"]


def _below(name: str, value: float | None, bound: float) -> Target:
    aim = f"at most {bound:.1%}"
    if value is None:
        return Target(name, aim, "no rows", None)
    return Target(name, aim, f"{value:.1%}", value <= bound)


def _beats(name: str, ours: float | None, theirs: float | None) -> list[Target]:
    """To be nearer than another model; none where one of both has no rows."""
    if ours is None or theirs is None:
        return []
    return [Target(name, f"below {theirs:.1%}", f"{ours:.1%}", ours < theirs)]


def by_scale(summaries: Report) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Bands of GPUs from small to large (``1-8``, ``9-64``, ..., ``1025+``), ``unknown`` last."""

    def least(item: tuple[str, Mapping[str, Any]]) -> float:
        first = item[0].rstrip("+").split("-")[0]
        return float(first) if first.isdigit() else math.inf

    return sorted(summaries.items(), key=least)


def by_size(summaries: Report) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Groups with the most rows first."""
    return sorted(summaries.items(), key=lambda item: (-item[1]["n"], item[0]))
