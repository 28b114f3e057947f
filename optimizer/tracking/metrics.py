"""Numbers of predictions and searches under the names they are tracked by: units as suffix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.trial import SearchResult
from optimizer.urls import without_password
from simulators.prediction import Prediction


def prediction_metrics(prediction: Prediction) -> dict[str, float]:
    """The numbers of a prediction under names that carry their units."""
    metrics = {
        name: getattr(prediction, name)
        for name in (
            "step_time_s",
            "mfu",
            "hfu",
            "tokens_per_s",
            "tokens_per_s_per_gpu",
            "cost_per_step_usd",
            "cost_per_billion_tokens_usd",
            "cost_of_run_usd",
        )
    }
    if prediction.interval_s is not None:
        metrics["step_time_low_s"], metrics["step_time_high_s"] = prediction.interval_s
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "headroom_bytes"):
        metrics[f"memory/{name}"] = getattr(prediction.memory, name)
    for part, seconds in prediction.breakdown_s.items():
        metrics[f"breakdown/{part.removesuffix('_s')}_s"] = seconds
    for kind, share in prediction.evidence_share.items():
        metrics[f"evidence/{kind}_share"] = share
    return metrics


def search_metrics(result: SearchResult) -> dict[str, float]:
    """How a search went, and the numbers of its best recipe."""
    metrics: dict[str, float] = {f"trials/{s}": n for s, n in result.counts().items()}
    metrics |= {"wall_s": result.wall_s, "space_size": result.space_size}
    if result.best and result.best[0].prediction is not None:
        best = prediction_metrics(result.best[0].prediction)
        metrics |= {f"best/{name}": value for name, value in best.items()}
    return metrics


def flat_params(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted names, for a run's parameters; passwords are left out."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = without_password(value) if isinstance(value, str) else value
    return flat
