"""A comparison for programs: JSON-ready, and as rows of CSV. Units are in the names."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainscout.reports.comparison.comparison import Comparison, Difference, Side
from trainscout.reports.comparison.wording import format_change
from trainscout.simulators.predictor.io.csv_files import csv_text


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """``a``, ``b``, ``difference`` (null: no other recipe), ``few_changes`` and ``one_knob``."""
    difference = comparison.difference
    first = comparison.first
    job = first.job
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "num_gpus": job.world_size,
        "gpu": job.gpu.name,
        "global_batch_size": job.training.global_batch_size,
        "sequence_length": job.sequence_length,
        "a": _side(first),
        "b": None if difference is None else _side(difference.other),
        "difference": None if difference is None else _difference(first, difference),
        "few_changes": None if comparison.few is None else dataclasses.asdict(comparison.few),
        "one_knob": [
            {
                "fields": list(each.fields),
                "before": list(each.before),
                "after": list(each.after),
                "step_time_s": each.prediction.step_time_s,
                "difference_s": each.prediction.step_time_s - first.prediction.step_time_s,
                "needed_bytes": each.prediction.memory.needed_bytes,
                "headroom_bytes": each.prediction.memory.headroom_bytes,
                "fits": each.prediction.fits,
                "distinguishable": each.distinguishable,
                "recipe": dataclasses.asdict(each.recipe),
            }
            for each in comparison.neighbours
        ],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "origin": side.origin,
        "recipe": {**dataclasses.asdict(side.recipe), "dp": side.job.dp},
        "prediction": side.prediction.to_dict(),
    }


def _difference(first: Side, difference: Difference) -> dict[str, Any]:
    other = difference.other
    return {
        "step_time_s": other.prediction.step_time_s - first.prediction.step_time_s,
        "needed_bytes": other.prediction.memory.needed_bytes
        - first.prediction.memory.needed_bytes,
        "breakdown_s": other.prediction.gaps_s(first.prediction),
        "tie_share": difference.tie_share,
        "distinguishable": difference.distinguishable(first),
        "reasons": [dataclasses.asdict(reason) for reason in difference.reasons],
        "changes": difference.attribution and dataclasses.asdict(difference.attribution),
    }


_FIGURES = (
    "step_time_s",
    "mfu",
    "mfu_causal",
    "hfu",
    "tokens_per_s_per_gpu",
    "cost_per_billion_tokens_usd",
    "cost_of_run_usd",
    "fits",
)


def comparison_csv(comparison: Comparison) -> str:
    """One row a recipe: ``a``, ``b`` and every one-knob change of ``a``."""
    first, difference = comparison.first, comparison.difference
    rows = [_row(first.name, "", first.recipe, first.prediction)]
    if difference is not None:
        other = difference.other
        rows.append(_row(other.name, "", other.recipe, other.prediction))
    for each in comparison.neighbours:
        words = format_change(each.fields, each.before, each.after)
        rows.append(_row("one_knob", words, each.recipe, each.prediction))
    return csv_text(dict.fromkeys(name for row in rows for name in row), rows)


def _row(name: str, change: str, recipe: Any, prediction: Any) -> dict[str, Any]:
    memory = prediction.memory
    return {
        "recipe": name,
        "change": change,
        **dataclasses.asdict(recipe),
        **{figure: getattr(prediction, figure) for figure in _FIGURES},
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "needed_bytes": memory.needed_bytes,
        "headroom_bytes": memory.headroom_bytes,
        **{f"breakdown_s.{part}": seconds for part, seconds in prediction.breakdown_s.items()},
    }
