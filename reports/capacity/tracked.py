"""A run of a capacity study as the runs that a tracker keeps (docs/mlflow.md)."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.optimizer.tracking.metrics import breakdown_metrics, flat_params, interval_metrics
from trainscout.optimizer.tracking.spool import Run, RunTree, make_run
from trainscout.planning.changes import Change
from trainscout.planning.outcome import CellResult, StudyOutcome
from trainscout.reports.capacity.study_tables import Record, several_fabrics
from trainscout.reports.capacity.terminal_tables import format_answer, format_change
from trainscout.reports.tracker_runs import NOTE, code_tags, settings_tags, size_params
from trainscout.simulators.predictor.io.markdown import table

_SHOWN_CHANGES = 20
# What a cell's answer may differ in from one run to the next without being another one.
_PASSING = ("command", "reason")


def study_runs(
    outcome: StudyOutcome,
    record: Record,
    *,
    settings: Mapping[str, Any],
    found: Sequence[Change] | None,
    directory: Path,
    files: Sequence[str],
) -> RunTree:
    """What to track: the study as one run, each of its cells as a child.

    Args:
        outcome: the study's.
        record: what ``study_record`` made of it.
        settings: the whole configuration as plain values.
        found: the differences from the run before; None when there was none.
        directory: the run's, which has the ``files`` by name.
    """
    ended_ms = int(time.time() * 1000)
    cells: Sequence[Record] = record["cells"]
    tags = {
        "framework": settings.get("framework", {}).get("name"),
        "objective": "step_time",
        **settings_tags(settings),
        **code_tags("trainscout plan"),
        "study": record["name"],
        "group": directory.name,
    }
    parent = make_run(
        f"{record['name']}, {len(cells)} cells",
        ended_ms - int(outcome.wall_s * 1000),
        ended_ms,
        params=flat_params(settings),
        metrics=_study_metrics(outcome, found),
        tags={
            **tags,
            "kind": "study",
            "status": "meets_all" if all(m.meets_all for m in outcome.models) else "missed",
            NOTE: study_note(outcome, record, found),
        },
    )
    answers = {model["answer"] for model in record["models"]}
    with_fabric = several_fabrics(cells)
    children = tuple(
        _cell_run(result, cell, {**tags, "answer": cell["key"] in answers}, with_fabric, ended_ms)
        for result, cell in zip(outcome.results, cells, strict=True)
    )
    return RunTree(
        parent,
        children,
        directory,
        tuple(directory / name for name in files),
        children_digest=_digest(record, tags),
    )


def _digest(record: Record, tags: Mapping[str, Any]) -> str:
    """Equal cells with equal answers, equal digests: MLflow need not be told twice."""
    cells = [
        {name: value for name, value in cell.items() if name not in _PASSING}
        for cell in record["cells"]
    ]
    text = json.dumps([record["name"], tags["version"], cells, record["models"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _study_metrics(outcome: StudyOutcome, found: Sequence[Change] | None) -> dict[str, float]:
    statuses = [result.answer.status for result in outcome.results]
    metrics: dict[str, float] = {
        f"cells/{status}": statuses.count(status) for status in ("fits", "nothing_fits", "failed")
    }
    metrics |= {
        "cells/searched": outcome.searched,
        "cells/known": outcome.stored,
        "search/wall_s": outcome.wall_s,
    }
    if found is not None:
        metrics["changes"] = len(found)
    for model in outcome.models:
        if model.chosen is not None:
            point = model.chosen
            own = {"days": point.days, "usd": point.usd, "num_gpus": point.num_gpus}
            own |= {"mfu": point.best.mfu, "goodput_share": point.goodput.share}
            metrics |= {f"best/{model.model}/{name}": value for name, value in own.items()}
    return metrics


def _cell_run(
    result: CellResult, cell: Record, tags: Mapping[str, Any], with_fabric: bool, ended_ms: int
) -> Run:
    name = f"{cell['model']}: {cell['num_gpus']} x {cell['cluster']}"
    if with_fabric:
        name += f", {result.cell.fabric}"
    settings = ("nics_per_node", "nic_gbps", "oversubscription", "price_usd_per_hour")
    params = size_params(result.cell.question) | {name: cell[name] for name in settings}
    metrics: dict[str, float] = {}
    if result.point is not None:
        params |= {**cell["recipe"], "dp": cell["dp"]}
        metrics = _cell_metrics(cell)
    return make_run(
        name,
        ended_ms - int(result.answer.wall_s * 1000),
        ended_ms,
        params=params,
        metrics=metrics,
        tags={
            **tags,
            "kind": "cell",
            "model": result.cell.question.model.name,
            "cluster": result.cell.question.cluster.name,
            "gpu": cell["gpu"],
            "status": cell["status"],
            "stopped": cell["stopped"],
            "rank": 1 if result.point is not None else None,
            "pareto": str(cell.get("pareto", False)).lower(),
            "proved": str(cell["proved"]).lower(),
            "answer": str(tags["answer"]).lower(),
            "targets_met": " ".join(cell.get("targets_met", ())) or None,
            "recipe": cell.get("recipe_words"),
            NOTE: f"{cell['reason'] or ''}\n\n```\n{cell['command']}\n```".strip(),
        },
    )


_PLAIN = (
    "days",
    "gpu_hours",
    "usd",
    "goodput_share",
    "step_time_s",
    "mfu",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "checkpoint_interval_s",
)


def _cell_metrics(cell: Record) -> dict[str, float]:
    metrics = {name: cell[name] for name in _PLAIN if cell[name] is not None}
    metrics["memory/needed_gib"] = cell["needed_bytes"] / 2**30
    metrics |= interval_metrics(cell["step_interval_s"])
    if cell["days_interval"] is not None:
        metrics["days_low"], metrics["days_high"] = cell["days_interval"]
    return metrics | breakdown_metrics(cell["breakdown_s"], cell["evidence_share"])


def study_note(outcome: StudyOutcome, record: Record, found: Sequence[Change] | None) -> str:
    """The answer of a study in Markdown: a sentence a model, the front of its cells, what
    changed."""
    cells = {cell["key"]: cell for cell in record["cells"]}
    parts = [f"- {format_answer(model, outcome)}" for model in outcome.models]
    for model in outcome.models:
        keys = [point.cell.key for point in model.front]
        parts += _front_table(model.model, [cells[key] for key in keys])
    if found is not None:
        count = f"{len(found)} changed" if found else "nothing changed"
        parts += ["", f"Since the last run: {count}.", ""]
        parts += [f"- {format_change(change)}" for change in found[:_SHOWN_CHANGES]]
    return "\n".join(parts)


def _front_table(model: str, front: Sequence[Record]) -> list[str]:
    if not front:
        return []
    title = f"**{model}**: no other cell needs fewer GPUs, days and dollars at once"
    heads = ("cluster", "GPUs", "days", "cost, USD", "MFU", "recipe")
    rows = []
    for cell in front:
        figures = (f"{cell['num_gpus']:,}", f"{cell['days']:,.1f}", f"{cell['usd']:,.0f}")
        rows.append((cell["cluster"], *figures, f"{cell['mfu']:.1%}", cell["recipe_words"]))
    return ["", title, "", table(heads, rows, left=("cluster", "recipe"))]
