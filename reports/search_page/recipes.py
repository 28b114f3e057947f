"""The recipes that are shown, each with every figure of its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainscout.optimizer.trial import Trial
from trainscout.reports.error_bars import lead_share, tie_shares
from trainscout.reports.evidence import evidence_of
from trainscout.reports.explain import JobOf
from trainscout.reports.trials import layout, predicted
from trainscout.reports.wording import format_recipe
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job

SECONDS_A_DAY = 86400.0
_OF_PREDICTION = (
    *("step_time_s", "mfu", "mfu_causal", "hfu", "tokens_per_s", "tokens_per_s_per_gpu"),
    *("cost_of_run_usd", "cost_per_billion_tokens_usd", "critical_stage"),
)
_OF_MEMORY = (
    *("needed_bytes", "capacity_bytes", "headroom_bytes", "fit_probability", "worst_stage"),
)


def recipe_rows(
    ranked: Sequence[Trial], job_of: JobOf, notes: Mapping[int, str]
) -> list[dict[str, Any]]:
    """One row a recipe, in the order given.

    ``layout`` numbers equal layouts alike. ``tied``: whether it cannot be distinguished from the
    first (``reports.error_bars``); None where predictions have no error bar. ``note``: what
    speaks for it, of ``notes`` by the trial's number.
    """
    layouts: dict[tuple[object, ...], int] = {}
    rows = []
    for rank, (trial, share) in enumerate(
        zip(ranked, tie_shares(ranked, job_of), strict=True), start=1
    ):
        lead = lead_share(predicted(ranked[0]), predicted(trial))
        rows.append(
            {
                "rank": rank,
                "number": trial.number,
                "words": format_recipe(trial.recipe, job_of(trial.recipe).dp),
                "sentence": recipe_sentence(job_of(trial.recipe)),
                "layout": layouts.setdefault(layout(trial), len(layouts)),
                "lead_share": lead,
                "tie_share": share,
                "tied": None if share is None else lead <= share,
                "note": notes.get(trial.number, ""),
                **figures(predicted(trial), job_of(trial.recipe)),
            }
        )
    return rows


def figures(prediction: Prediction, job: Job) -> dict[str, Any]:
    """The figures of one prediction, with units in their names; ``days`` of the whole run."""
    low_s, high_s = prediction.interval_s or (None, None)
    return {
        **{name: getattr(prediction, name) for name in _OF_PREDICTION},
        "low_s": low_s,
        "high_s": high_s,
        "days": job.training.tokens / prediction.tokens_per_s / SECONDS_A_DAY,
        **{name: getattr(prediction.memory, name) for name in _OF_MEMORY},
        "breakdown_s": dict(prediction.breakdown_s),
        "evidence_share": dict(prediction.evidence_share),
        "estimated_operations": list(prediction.estimated_operations),
        "assumptions": list(prediction.assumptions),
        "grades": asdict(evidence_of(prediction, job)),
    }


_RECOMPUTE = {"selective": "recomputes selected modules", "full": "recomputes whole layers"}


def recipe_sentence(job: Job) -> str:
    """One sentence on how a valid job is laid out and run."""
    recipe = job.recipe
    pipeline = f"{recipe.pp} pipeline stages" if recipe.pp > 1 else "no pipeline"
    if recipe.vpp > 1:
        pipeline += f" of {recipe.vpp} chunks each"
    parts = [
        f"Tensor parallelism over {recipe.tp} GPUs" if recipe.tp > 1 else "No tensor parallelism",
        pipeline,
        f"{job.dp} data-parallel replicas" if job.dp > 1 else "one replica",
    ]
    if recipe.cp > 1:
        parts.append(f"sequences split over {recipe.cp} GPUs")
    if job.model.moe is not None:
        parts.append(f"experts spread over {recipe.ep} GPUs")
    parts.append(
        f"micro-batches of {recipe.micro_batch} ({job.num_micro_batches} a step for each replica)"
    )
    return f"{', '.join(parts)}; {'; '.join(_switches(job))}."


def _switches(job: Job) -> list[str]:
    recipe = job.recipe
    stated = [_RECOMPUTE.get(recipe.recompute, "recomputes nothing")]
    sharded = {0: "replicates", 1: "shards", 2: "shards gradients and", 3: "shards parameters and"}
    stated.append(f"{sharded[recipe.zero_stage]} optimizer state (ZeRO {recipe.zero_stage})")
    if recipe.sp:
        stated.append("sequence parallel")
    overlaps = [
        words
        for words, on in (
            ("gradient reduction", recipe.overlap_grad_reduce),
            ("parameter gathers", recipe.overlap_param_gather),
            ("tensor-parallel communication", recipe.tp_comm_overlap),
            ("expert exchange", recipe.overlap_moe_expert_parallel_comm),
        )
        if on
    ]
    stated.append(
        f"overlaps {' and '.join(overlaps)}" if overlaps else "overlaps no communication"
    )
    return stated
