"""The accuracy page, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from trainscout.simulators.laboratory.published.fits import kernel_fits
from trainscout.simulators.laboratory.published.headline import (
    LEFT_OUT,
    Report,
    Target,
    by_scale,
    by_size,
    headline,
    targets,
)
from trainscout.simulators.laboratory.published.markdown import (
    MET,
    SUMMARY_HEADER,
    percent,
    signed,
    summary_cells,
    table,
)
from trainscout.simulators.laboratory.published.parts import (
    collectives_section,
    kernels_section,
    overlap_section,
)
from trainscout.simulators.laboratory.score import summarise
from trainscout.simulators.predictor.uncertainty.interval import (
    UNSEEN_FASTER,
    UNSEEN_SLOWER,
)

COMMAND = "trainscout accuracy"
STEP_PLOT, ERROR_PLOT, MEMORY_PLOT = "step_time.svg", "errors.svg", "memory.svg"
PLOT_FOLDER = "accuracy"

_GROUPINGS = (
    ("by_gpu", "GPU"),
    ("by_family", "model family"),
    ("by_scale", "GPUs"),
    ("by_precision", "precision"),
)


def accuracy_page(
    report: Report,
    coverage: Mapping[str, float],
    collectives: Report | None,
    kernels: Report | None,
    later: str,
    analysis: str,
) -> str:
    """The whole page.

    Args:
        report: what ``validation_report`` returns for the published rows.
        coverage: how often error bars held runs that were left out.
        collectives: summary written by the collectives' own validator, None when there is none.
        kernels: the same for kernels.
        later: the section on runs read after the model was made.
        analysis: the hand-written error analysis, Markdown.
    """
    parts = [
        _introduction(report),
        _targets(targets(report, coverage, collectives, kernel_fits())),
        _step_time(report),
        later,
        _layouts(report),
        _beside_others(report),
        _memory(report),
        _error_bars(coverage),
        _extrapolated(report),
        kernels_section(kernels),
        collectives_section(collectives),
        overlap_section(),
        "## Error analysis\n\n" + analysis.strip(),
        _left_out(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(report: Report) -> str:
    everything = headline(report)
    grades = " and ".join(report["quality"])
    return f"""# Accuracy

How far predictions are from published measurements of real training runs. The page is generated:

<!-- not run: writes this page, in a minute -->
```
{COMMAND}
```

It replays the rows of `simulators/laboratory/data/published_runs.csv` (each with its source)
and compares.
Of grades {grades} there are {report["overall"]["n"]} step times. No price is
keyed on a row, a model name or a source: parameters belong to a GPU, a transport or a framework
version. Where a row names neither the year of its software nor its fabric, the name of its
source may tell (a paper's year, a cloud's recipes); that picks the declared framework or
transport. Every assumption that a row needed is in the JSON file of
`trainscout validate --json`. [Validation](validation.md) says what the columns mean and
how to hold predictions against your own runs.

**Step time, {everything.n} runs: median error {percent(everything.median_abs_error)},
mean {percent(everything.mean_abs_error)}, 90th percentile {percent(everything.p90_abs_error)},
bias {signed(everything.bias)}.**

![Predicted against measured step time]({PLOT_FOLDER}/{STEP_PLOT})"""


def _targets(found: Sequence[Target]) -> str:
    rows = [(target.name, target.aim, target.reached, MET[target.met]) for target in found]
    return "## Targets\n\n" + table(("figure", "target", "reached", "met"), rows)


def _step_time(report: Report) -> str:
    flat = report["baseline"]["by_source"]
    rows = [
        (name, *summary_cells(summary), percent(flat.get(name, {}).get("mean_abs_error")))
        for name, summary in by_size(report["by_source"])
    ]
    header = ("source", *SUMMARY_HEADER, "flat baseline, mean")
    parts = [
        "## Step time\n\nErrors are fractions of the measured step time; the bias is the mean "
        "signed error (negative: predicted too fast). The flat baseline runs every FLOP, "
        "recomputed ones too, at half of the dense peak and adds tensor-parallel communication, "
        "nothing else.",
        table(header, rows),
        f"![Errors by source]({PLOT_FOLDER}/{ERROR_PLOT})",
    ]
    for key, name in _GROUPINGS:
        ordered = by_scale if key == "by_scale" else by_size
        groups = [(group, *summary_cells(summary)) for group, summary in ordered(report[key])]
        parts.append(table((name, *SUMMARY_HEADER), groups))
    return "\n\n".join(parts)


def _layouts(report: Report) -> str:
    shown = [
        (
            name,
            ranking["n"],
            f"{ranking['kendall_tau']:.2f}",
            percent(ranking["selection_regret"]),
        )
        for name, ranking in report["layouts"].items()
    ]
    text = (
        "## Layouts\n\nA sweep is a set of runs that did the same work in the same conditions and "
        "differ in their recipe. Kendall's tau compares the predicted order with the measured "
        "one (1: the same); the selection regret is how much slower than the best measured "
        "layout the one is that we would pick. BigScience varied the model along with the "
        "layout: its blocks (one state of software and hardware each) are ranked by time per "
        "model FLOP.\n\n"
    )
    return text + table(("sweep", "layouts", "Kendall's tau", "selection regret"), shown)


def _extrapolated(report: Report) -> str:
    rows = [(name, *summary_cells(one)) for name, one in by_size(report["extrapolated"])]
    if not rows:
        return ""
    return (
        "## Extrapolated, not measured\n\nTimes of runs that differ in their layers or batch "
        "alone lie on straight lines to parts per million in most families of these publications; "
        "no clock repeats to that. They enter no fit, error bar, summary or sweep above; "
        "predictions beside them are shown for what they are worth.\n\n"
        + table(("source", *SUMMARY_HEADER), rows)
    )


def _beside_others(report: Report) -> str:
    sets = report["baseline"]["sets"]
    peers = sorted({peer for one in sets.values() for peer in one["peers"]})
    rows = [
        (
            name,
            one["ours"]["n"],
            percent(one["ours"]["mean_abs_error"]),
            percent(one["flat_baseline"]["mean_abs_error"]),
            *(percent(one["peers"].get(peer, {}).get("mean_abs_error")) for peer in peers),
        )
        for name, one in sets.items()
    ]
    return (
        "## Beside other simulators\n\nMean absolute error on the same rows. The other simulators "
        "were run by us at the settings their documentation suggests (Calculon caa4b11, SimuMax "
        "4dcaae5 with an A100 file written from data sheets, llm-analysis d841e40 at 50% "
        "efficiency); `simulators/laboratory/data/peer_predictions.csv` has their figures row by "
        "row, "
        "also of cases whose measured times are not among the published rows here.\n\n"
        + table(("cases", "rows", "ours", "flat baseline", *peers), rows)
    )


def _memory(report: Report) -> str:
    memory = report["memory"]
    if not memory["overall"]["n"]:
        return ""
    rows = [(name, *summary_cells(summary)) for name, summary in by_size(memory["by_source"])]
    rows.append(("all", *summary_cells(memory["overall"])))
    kinds: dict[str, list[float]] = {}
    for row in report["rows"]:
        if row["counted"] and row["memory_error"] is not None:
            kinds.setdefault(row["memory_kind"], []).append(row["memory_error"])
    counted = [(kind, *summary_cells(summarise(kinds[kind]).to_dict())) for kind in sorted(kinds)]
    return (
        "## Memory\n\nThe worst pipeline stage's peak against what was published, counting what "
        "the publisher counts: `allocated` and `reserved` are the caching allocator's figures, "
        "`device` is what nvidia-smi shows.\n\n"
        + table(("figure", *SUMMARY_HEADER), counted)
        + "\n\n"
        + table(("source", *SUMMARY_HEADER), rows)
        + f"\n\n![Predicted against measured memory]({PLOT_FOLDER}/{MEMORY_PLOT})"
    )


def _error_bars(coverage: Mapping[str, float]) -> str:
    rows = [(f"a {group}", percent(coverage[key])) for key, group in LEFT_OUT.items()]
    rows.insert(0, ("a random fifth of the runs", percent(coverage["five_fold"])))
    return (
        "## Error bars\n\nA prediction's interval comes from the residuals of the runs most like "
        "it (`trainscout residuals` redoes them): on GPU, architecture, precision, experts, "
        "kernels, framework, fabric and size. Software that is not declared, and a fabric that no "
        f"run had, have none alike and wider bars. Of {coverage['n']:.0f} runs, the "
        f"{coverage['level']:.0%} interval made without them holds (mean over the groups):\n\n"
        + table(("left out", "inside"), rows)
        + f"\n\nThe median interval's high end is {coverage['median_width']:.0%} above its low "
        "end. These runs were in view while the predictor was made, and leaving them out of the "
        "residuals does not undo that, and publications that nobody had seen lean to the slow "
        "side (above). Intervals of predictions therefore reach farther than those counted here: "
        f"{UNSEEN_FASTER:g} times as far on the fast side; on the slow one "
        f"{UNSEEN_SLOWER['alone']:g} times on a GPU alone, {UNSEEN_SLOWER['node']:g} inside a "
        f"node and {UNSEEN_SLOWER['network']:g} over a network that was not measured."
    )


def _left_out(report: Report) -> str:
    reasons = Counter(skipped["reason"] for skipped in report["skipped"])
    rows = [(reason, number) for reason, number in reasons.most_common()]
    return (
        "## Rows that are not predicted\n\nRows of every grade; none is dropped silently.\n\n"
        + table(("reason", "rows"), rows)
    )
