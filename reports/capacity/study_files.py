"""A run of a capacity study as plain values: what ``study.json`` and ``study.csv`` hold."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainscout.planning.cells import FABRIC, Cell
from trainscout.planning.changes import Change
from trainscout.planning.fabric_cost import FabricCost
from trainscout.planning.outcome import CellResult, ModelOutcome, ScenarioAnswer, StudyOutcome
from trainscout.planning.points import Point, TargetAnswer
from trainscout.reports.answer import format_measure_first
from trainscout.reports.capacity.terminal_tables import format_answer, format_bend
from trainscout.reports.wording import format_recipe
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import json_text

FORMAT = 1


def study_record(
    outcome: StudyOutcome, *, started: str, commit: str | None, groups: Mapping[str, str]
) -> dict[str, Any]:
    """The whole run, JSON-ready; units are in the names.

    Args:
        outcome: what was found.
        started: when, as text.
        commit: of Trainscout, when known.
        groups: the choices of configuration groups that ``trainscout optimize`` has too.
    """
    fronts = {point.cell.key for model in outcome.models for point in model.front}
    return {
        "format": FORMAT,
        "name": outcome.study.name,
        "started": started,
        "commit": commit,
        "wall_s": outcome.wall_s,
        "searched_cells": outcome.searched,
        "stored_cells": outcome.stored,
        "study": asdict(outcome.study),
        "models": [_model_record(model) for model in outcome.models],
        "cells": [_cell_record(result, outcome, fronts, groups) for result in outcome.results],
    }


def study_json(
    outcome: StudyOutcome,
    record: Mapping[str, Any],
    *,
    found: Sequence[Change] | None,
    directory: Path,
    tracked: str | None,
) -> str:
    """What ``format=json`` prints: the record, with the answers in words, the differences from the
    run before (null: there was none), where its files are, and where it is tracked."""
    content = {
        "answers": [format_answer(model, outcome) for model in outcome.models],
        "changes": None if found is None else [change.to_json() for change in found],
        "directory": str(directory),
        "tracked": tracked,
        **record,
    }
    return json_text(content, 1)


def _model_record(model: ModelOutcome) -> dict[str, Any]:
    return {
        "model": model.model,
        "answer": _key(model.chosen),
        "meets_all_targets": model.meets_all,
        "targets": [_target_record(target) for target in model.targets],
        "scaling": [
            {
                "cluster": curve.cluster,
                "fabric": curve.fabric,
                "sizes": [
                    {
                        "num_gpus": size.point.num_gpus,
                        **{name: getattr(size, name) for name in _OF_SIZE},
                        "tokens_per_s_per_gpu": size.point.best.tokens_per_s / size.point.num_gpus,
                        "bend": format_bend(size),
                    }
                    for size in curve.points
                ],
            }
            for curve in model.curves
        ],
        "effects": [asdict(effect) for effect in model.effects],
        "break_evens": [
            {
                "cell": even.point.cell.key,
                "price_usd_per_hour": even.price_usd_per_hour,
                "break_even_usd_per_hour": even.break_even_usd_per_hour,
            }
            for even in model.break_evens
        ],
        "price_scenarios": [_scenario_record(scenario) for scenario in model.scenarios],
        "fabrics": [_fabric_record(cost) for cost in model.fabrics],
    }


def _fabric_record(cost: FabricCost) -> dict[str, Any]:
    return {
        "cell": cost.point.cell.key,
        **asdict(cost.parts),
        "switches": cost.parts.switches,
        **{name: getattr(cost, name) for name in _OF_FABRIC},
    }


def _scenario_record(scenario: ScenarioAnswer) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": scenario.name,
        "answer": _key(scenario.chosen),
        "meets_all_targets": scenario.meets_all,
    }
    point = scenario.chosen
    if point is None:
        return record
    price = point.cell.question.gpu.price_usd_per_hour
    return {**record, "price_usd_per_hour": price, "days": point.days, "usd": point.usd}


def _target_record(target: TargetAnswer) -> dict[str, Any]:
    return {
        "name": target.name,
        **asdict(target.target),
        "met_by": len(target.meeting),
        **{prefer: _key(point) for prefer, point in target.best.items()},
    }


def _key(point: Point | None) -> str | None:
    return None if point is None else point.cell.key


def _cell_record(
    result: CellResult, outcome: StudyOutcome, fronts: set[str], groups: Mapping[str, str]
) -> dict[str, Any]:
    cell, answer, point = result.cell, result.answer, result.point
    cluster, training = cell.question.cluster, cell.question.training
    # An answer of which no run is possible, for failures, is none.
    status = answer.status if point is not None or answer.best is None else "failed"
    record: dict[str, Any] = {
        "key": cell.key,
        "status": status,
        "reason": result.reason,
        "model": cell.model,
        "cluster": cell.cluster,
        "gpu": cell.question.gpu.name,
        "num_gpus": cell.num_gpus,
        **{name: getattr(cluster, name) for name in _OF_CLUSTER},
        "topology": None if cell.topology is None else cell.topology.name,
        "fabric": cell.fabric,
        "global_batch_size": training.global_batch_size,
        "price_usd_per_hour": cell.question.gpu.price_usd_per_hour,
        "stopped": answer.stopped,
        "proved": answer.proved,
        "command": search_command(cell, groups, outcome.study.prices_usd_per_hour),
    }
    if point is None:
        return record
    best, share = point.best, point.goodput
    targets = outcome.study.targets
    return {
        **record,
        **{name: getattr(point, name) for name in _OF_POINT},
        "pareto": cell.key in fronts,
        "targets_met": [name for name, target in targets.items() if point.meets(target)],
        "recipe": asdict(best.recipe),
        "recipe_words": format_recipe(best.recipe, best.dp),
        "dp": best.dp,
        "step_time_s": best.step_time_s,
        "step_interval_s": best.interval_s,
        "measure_first": format_measure_first(point.claim),
        "mfu": best.mfu,
        "tokens_per_s": best.tokens_per_s,
        "tokens_per_s_per_gpu": best.tokens_per_s / cell.num_gpus,
        **{name: getattr(best, name) for name in _OF_BEST},
        "goodput_share": share.share,
        "mtbf_s": share.mtbf_s,
        "checkpoint_interval_s": share.checkpoint_interval_s,
        "estimated_operations": list(best.estimated_operations),
        "assumptions": list(best.assumptions),
    }


_OF_CLUSTER = ("num_nodes", *FABRIC)
_OF_POINT = ("days", "days_interval", "gpu_hours", "usd")
_OF_SIZE = ("efficiency", "part", "share_of_growth", "batch_limited")
_OF_FABRIC = ("usd", "slower", "saved_usd", "usd_per_percent", "recipe_changed")
_OF_BEST = (
    *("breakdown_s", "evidence_share"),
    *("peak_reserved_bytes", "needed_bytes", "capacity_bytes"),
)


def search_command(cell: Cell, groups: Mapping[str, str], prices: Mapping[str, float]) -> str:
    """The ``trainscout optimize`` command that searches a cell alone and shows all about it.

    ``prices`` are those the study gives, by GPU; others are declared, often as assumptions.
    """
    question = cell.question
    gpu, _, cluster = cell.cluster.rpartition("@")
    chosen = {"model": cell.model, "cluster": cluster}
    if gpu:
        chosen["gpu"] = gpu
    settings: dict[str, Any] = {**chosen, **groups, "objective": "step_time"}
    if cell.topology is not None:
        settings["topology"] = cell.topology.name
    for field in _OF_CLUSTER:
        value = getattr(question.cluster, field)
        settings[f"cluster.{field}"] = "null" if value is None else value
    for field, value in asdict(question.training).items():
        if value is not None:
            settings[f"training.{field}"] = value
    if question.gpu.name in prices:
        settings["gpu.price_usd_per_hour"] = question.gpu.price_usd_per_hour
    return shlex.join(
        ["trainscout", "optimize", *(f"{name}={value}" for name, value in settings.items())]
    )


_CSV_COLUMNS = (
    *("model", "cluster", "gpu", "num_gpus", "num_nodes", "nics_per_node", "nic_gbps"),
    *("oversubscription", "topology", "global_batch_size", "price_usd_per_hour", "status"),
    *("reason", "proved", "days", "days_low", "days_high", "gpu_hours", "usd", "pareto"),
    *("targets_met", "goodput_share", "checkpoint_interval_s", "recipe_words", "step_time_s"),
    *("measure_first", "mfu", "tokens_per_s", "tokens_per_s_per_gpu", "peak_reserved_bytes"),
)


def study_csv(record: Mapping[str, Any]) -> str:
    """``study_rows`` as CSV; empty where a cell has no such value."""
    columns, rows = study_rows(record)
    return csv_text(columns, ({name: row.get(name) for name in columns} for row in rows))


def study_rows(record: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of ``study.csv``, ``breakdown_s.<part>`` last, and a row for each cell."""
    cells: Sequence[Mapping[str, Any]] = record["cells"]
    parts = sorted({part for cell in cells for part in cell.get("breakdown_s", ())})
    rows = []
    for cell in cells:
        row = dict(cell)
        row["targets_met"] = " ".join(cell.get("targets_met", ()))
        row["days_low"], row["days_high"] = cell.get("days_interval") or (None, None)
        for part, seconds in cell.get("breakdown_s", {}).items():
            row[f"breakdown_s.{part}"] = seconds
        rows.append(row)
    return [*_CSV_COLUMNS, *(f"breakdown_s.{part}" for part in parts)], rows
