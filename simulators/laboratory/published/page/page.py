"""The accuracy pages, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainscout.simulators.laboratory.published.layouts import together
from trainscout.simulators.laboratory.score import summarise
from trainscout.simulators.laboratory.uncertainty.coverage import LEFT_OUT
from trainscout.simulators.predictor.io.markdown import table

from .fits import kernel_fits
from .headline import Report, Target, by_scale, by_size, headline, targets
from .later import Test, blind_summary, blind_tests_page
from .markdown import (
    SUMMARY_HEADER,
    TEXTS,
    beside_others,
    percent,
    signed,
    summary_cells,
    summary_table,
)
from .parts import collectives_section, kernels_section, overlap_section

COMMAND = "trainscout accuracy"
STEP_PLOT, ERROR_PLOT, MEMORY_PLOT = "step_time.svg", "errors.svg", "memory.svg"
PLOT_FOLDER = "accuracy"

_GROUPINGS = {"by_gpu": "GPU", "by_family": "model family"}


def accuracy_pages(
    report: Report,
    coverage: Mapping[str, Any],
    collectives: Report | None,
    kernels: Report | None,
    tests: Sequence[Test],
) -> dict[str, str]:
    """Every generated page by its file under ``docs``: one to decide by, details below it.

    Args:
        report: what ``validation_report`` returns for the published rows.
        coverage: what ``stored_coverage`` returns.
        collectives: summary written by the collectives' own validator, None when there is none.
        kernels: the same for kernels.
        tests: the blind tests, on runs read after the model was made.
    """
    aims = targets(report, coverage, collectives, kernel_fits())
    pages = {
        "accuracy": (
            _introduction(report),
            _kinds(report),
            _blind(tests),
            _error_bars(coverage),
            _ties(coverage["order"]),
            _memory(report),
            _missed(aims),
            TEXTS["outside"],
            TEXTS["details"].format(command=COMMAND, plot=f"{PLOT_FOLDER}/{STEP_PLOT}"),
        ),
        f"{PLOT_FOLDER}/published-runs": (
            _step_time(report),
            _layouts(report),
            _compared_with_others(report),
            _memory_by_source(report),
            _extrapolated(report),
            _left_out(report),
            _targets(aims),
        ),
        f"{PLOT_FOLDER}/blind-tests": (blind_tests_page(tests),),
        f"{PLOT_FOLDER}/parts": (
            TEXTS["parts"],
            kernels_section(kernels),
            collectives_section(collectives),
            overlap_section(),
        ),
    }
    return {f"{name}.md": "\n\n".join(filter(None, of)) + "\n" for name, of in pages.items()}


def _introduction(report: Report) -> str:
    everything = headline(report)
    introduction: str = TEXTS["introduction"]
    return introduction.format(
        runs=everything.n,
        median=percent(everything.median_abs_error),
        mean=percent(everything.mean_abs_error),
        p90=percent(everything.p90_abs_error),
        bias=signed(everything.bias),
    )


def _kinds(report: Report) -> str:
    kinds = [("all", report["overall"])]
    kinds += [(f"{name} GPUs", one) for name, one in by_scale(report["by_scale"])]
    kinds += [each for key in ("by_layers", "by_precision") for each in by_size(report[key])]
    grades = " and ".join(report["quality"])
    return f"{TEXTS['kinds'].format(grades=grades)}\n\n{_short('published runs', kinds)}"


def _short(name: str, groups: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The figures that a reader decides by, as narrow as a phone."""
    rows = [
        (
            *(group, one["n"], percent(one["median_abs_error"]), percent(one["p90_abs_error"])),
            signed(one["bias"]),
        )
        for group, one in groups
    ]
    return table((name, "rows", "median", "p90", "bias"), rows)


def _blind(tests: Sequence[Test]) -> str:
    found, sweeps = blind_summary(tests), _together([report for _, report, _ in tests])
    return f"{TEXTS['blind']}\n\n{found}{sweeps}" if found else ""


def _missed(found: Sequence[Target]) -> str:
    missed = [target for target in found if target.met is False]
    rows = [(target.name, target.aim, target.reached) for target in missed]
    counts = {"met": sum(target.met is True for target in found), "number": len(found)}
    return f"{TEXTS['missed'].format(**counts)}\n\n{table(('figure', 'target', 'reached'), rows)}"


def _targets(found: Sequence[Target]) -> str:
    rows = [(target.name, target.aim, target.reached) for target in found if target.met]
    missed = "The others are [missed](../accuracy.md#targets-missed), or nothing was measured."
    return f"## Targets met\n\n{missed}\n\n{table(('figure', 'target', 'reached'), rows)}"


def _step_time(report: Report) -> str:
    flat = report["baseline"]["by_source"]
    rows = [
        (name, *summary_cells(summary), percent(flat.get(name, {}).get("mean_abs_error")))
        for name, summary in by_size(report["by_source"])
    ]
    parts = [
        TEXTS["step_time"],
        table(("source", *SUMMARY_HEADER, "flat baseline, mean"), rows),
        f"![Errors by source]({ERROR_PLOT})",
    ]
    for key, name in _GROUPINGS.items():
        parts.append(summary_table(name, [each for each in by_size(report[key]) if each[1]["n"]]))
    return "\n\n".join(parts)


def _layouts(report: Report) -> str:
    shown = [
        (name, each["n"], f"{each['kendall_tau']:.2f}", percent(each["selection_regret"]))
        for name, each in report["layouts"].items()
    ]
    header = ("sweep", "layouts", "Kendall's tau", "selection regret")
    return f"{TEXTS['layouts']}\n\n{table(header, shown)}{_together([report])}"


def _together(reports: Sequence[Report]) -> str:
    """A paragraph about the order of layouts, where there are sweeps."""
    sweeps = [sweep for report in reports for sweep in report["layouts"].values()]
    if not sweeps:
        return ""
    return f"\n\n{TEXTS['sweeps'].format(number=len(sweeps), **together(sweeps))}"


def _extrapolated(report: Report) -> str:
    found = by_size(report["extrapolated"])
    return f"{TEXTS['extrapolated']}\n\n{summary_table('source', found)}" if found else ""


def _compared_with_others(report: Report) -> str:
    peers, rows = beside_others(report["baseline"]["sets"])
    header = ("cases", "rows", "ours", "flat baseline", *peers)
    return f"{TEXTS['beside_others']}\n\n{table(header, rows)}"


def _memory(report: Report) -> str:
    """Memory by what of it was published."""
    kinds: dict[str, list[float]] = {}
    for row in report["rows"]:
        if row["counted"] and row["memory_error"] is not None:
            kinds.setdefault(row["memory_kind"], []).append(row["memory_error"])
    counted = [(kind, summarise(kinds[kind]).to_dict()) for kind in sorted(kinds)]
    return f"{TEXTS['memory']}\n\n{_short('figure', counted)}" if counted else ""


def _memory_by_source(report: Report) -> str:
    memory = report["memory"]
    if not memory["overall"]["n"]:
        return ""
    plot = f"![Predicted against measured memory]({MEMORY_PLOT})"
    of_sources = summary_table("source", by_size(memory["by_source"]))
    return f"## Memory by source\n\n{of_sources}\n\n{plot}"


def _error_bars(coverage: Mapping[str, float]) -> str:
    rows = [(words, percent(coverage[of])) for of, words in LEFT_OUT.items() if of in coverage]
    begin, end = (TEXTS[name].format(**coverage) for name in ("error_bars", "error_bars_end"))
    return f"{begin}\n\n{table(('left out', 'inside'), rows)}\n\n{end}"


def _ties(order: Mapping[str, Any]) -> str:
    rows = [
        (
            *(f"{each['least']:.0%} to {each['most']:.0%}", each["pairs"], each["publications"]),
            *(percent(each[name]) for name in ("said", "came")),
        )
        for each in order["likely"]
    ]
    apart = ", ".join(f"{share:.0%} by more than {by}" for by, share in order["apart"].items())
    header = ("probability of the order", "pairs", "publications", "predicted", "came")
    return f"{TEXTS['ties'].format(**{**order, 'apart': apart})}\n\n{table(header, rows)}"


def _left_out(report: Report) -> str:
    reasons = Counter(skipped["reason"] for skipped in report["skipped"])
    return f"{TEXTS['left_out']}\n\n{table(('reason', 'rows'), reasons.most_common())}"
