"""Numbers of predictions and searches under the names they are tracked by: units as suffix.

A figure has one name, whatever run it is of: plain on the run of a recipe, below ``best/`` on the
run of the search that found it. What is before a slash makes a section of MLflow's charts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainscout.optimizer.objective import Objective
from trainscout.optimizer.trial import SearchResult
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.redaction import redacted

_GIB = 2**30

_OBJECTIVES = {
    "cost": "cost_of_run_usd",
    "step_time": "step_time_s",
    "tokens_per_s": "tokens_per_s",
    "mfu": "mfu",
    "memory": "peak_reserved_gib",
}


def prediction_metrics(prediction: Prediction) -> dict[str, float]:
    """The numbers of a prediction under names that carry their units."""
    metrics = {
        name: getattr(prediction, name)
        for name in (
            "step_time_s",
            "mfu",
            "mfu_causal",
            "hfu",
            "tokens_per_s",
            "tokens_per_s_per_gpu",
            "cost_per_step_usd",
            "cost_per_billion_tokens_usd",
            "cost_of_run_usd",
        )
    }
    memory = prediction.memory
    metrics |= interval_metrics(prediction.interval_s)
    # In GiB, for people: charts would write bytes as billions.
    for name in ("peak_allocated", "peak_reserved", "needed", "headroom"):
        metrics[f"memory/{name}_gib"] = getattr(memory, f"{name}_bytes") / _GIB
    return metrics | breakdown_metrics(prediction.breakdown_s, prediction.evidence_share)


def interval_metrics(interval_s: tuple[float, float] | None) -> dict[str, float]:
    """Both ends of the step time's error bar; nothing where there is none."""
    return dict(zip(("step_time_low_s", "step_time_high_s"), interval_s or (), strict=False))


def breakdown_metrics(
    breakdown_s: Mapping[str, float], evidence_share: Mapping[str, float]
) -> dict[str, float]:
    """Where the step goes, in seconds, and which share of its prices was measured or not."""
    metrics = {
        f"breakdown/{part.removesuffix('_s')}_s": value for part, value in breakdown_s.items()
    }
    return metrics | {f"evidence/{kind}_share": share for kind, share in evidence_share.items()}


def search_metrics(result: SearchResult) -> dict[str, float]:
    """How a search went, and the numbers of its best recipe."""
    metrics: dict[str, float] = {f"trials/{s}": n for s, n in result.counts().items()}
    metrics |= {"search/wall_s": result.wall_s, "search/space_points": result.space_size}
    if result.best and result.best[0].prediction is not None:
        best = prediction_metrics(result.best[0].prediction)
        metrics |= {f"best/{name}": value for name, value in best.items()}
    return metrics


def best_so_far(result: SearchResult) -> dict[str, list[tuple[int, float]]]:
    """For each objective, its best value by number of the trial: a flat line from one improvement
    to the next, so that a chart that connects points shows the steps."""
    losses = Objective(result.objectives).losses
    found: dict[str, list[tuple[int, float]]] = {}
    trials = sorted(result.trials, key=lambda trial: trial.number)
    for at, name in enumerate(result.objectives):
        points: list[tuple[int, float]] = []
        best_loss = best = None
        for trial in trials:
            if trial.status != "ok" or trial.values is None:
                continue
            loss = losses(trial.values)[at]
            if best_loss is None or loss < best_loss:
                if best is not None and trial.number - 1 > points[-1][0]:
                    points.append((trial.number - 1, best))
                best_loss, best = loss, trial.values[at]
                points.append((trial.number, best))
        if best is not None and trials[-1].number > points[-1][0]:
            points.append((trials[-1].number, best))
        scale = 1 / _GIB if name == "memory" else 1.0
        if points:
            metric = f"best_so_far/{_OBJECTIVES[name]}"
            found[metric] = [(step, value * scale) for step, value in points]
    return found


def flat_params(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted names, for a run's parameters; passwords are left out."""
    flat: dict[str, Any] = {}
    for key, value in redacted(config).items():
        if isinstance(value, Mapping):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
