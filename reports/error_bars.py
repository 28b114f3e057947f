"""How sure, in words: the error bar of a step, and which recipes cannot be distinguished."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainscout.optimizer.trial import Trial
from trainscout.reports.explain import JobOf
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_percent, format_ranks
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.uncertainty.fastest import published_fastest
from trainscout.simulators.predictor.uncertainty.features import features_of
from trainscout.simulators.predictor.uncertainty.interval import LEVEL
from trainscout.simulators.predictor.uncertainty.ties import tie_share


def format_selection() -> str:
    """What a search's choosing by prediction costs, and how that is known."""
    found = published_fastest().selection
    return (
        "a search picks what is predicted most optimistically: where "
        f"{found.publications} publications have sweeps ({found.sweeps}), the layout predicted "
        f"best was {format_percent(math.expm1(found.shift))} slower against its prediction than "
        f"those beside it (standard error {format_percent(math.expm1(found.error))})"
    )


def tie_shares(ranked: Sequence[Trial], job_of: JobOf) -> list[float | None]:
    """For each trial, the lead (as a share of a step) below which it cannot be distinguished from
    the first; None where the predictions carry no error bar."""
    if not ranked:
        return []
    best, job = predicted(ranked[0]), job_of(ranked[0].recipe)
    if best.interval_s is None:
        return [None] * len(ranked)
    features = features_of(job, best.step_time_s, best.breakdown_s)
    others = (predicted(trial).breakdown_s for trial in ranked[1:])
    return [0.0, *(tie_share(features, best.breakdown_s, other) for other in others)]


def lead_share(best: Prediction, other: Prediction) -> float:
    """By how much of the shorter step two predictions differ."""
    shorter, longer = sorted((best.step_time_s, other.step_time_s))
    return longer / shorter - 1


def format_distinguishable(ranked: Sequence[Trial], job_of: JobOf) -> str | None:
    """Which of the recipes might as well be the best; None when there is nothing to say."""
    shares = tie_shares(ranked, job_of)
    if len(ranked) < 2 or shares[0] is None:
        return None
    best = predicted(ranked[0])
    pairs = list(zip(ranked, shares, strict=True))[1:]
    leads = [lead_share(best, predicted(trial)) for trial, _ in pairs]
    known = [share for _, share in pairs if share is not None]
    tied = [
        (rank, lead, share)
        for rank, (lead, share) in enumerate(zip(leads, known, strict=True), start=2)
        if lead <= share
    ]
    if not tied:
        return (
            f"every other recipe shown is behind #1 by more than {LEVEL:.0%} of the predicted "
            f"differences between measured layouts were off ({format_percent(max(known))} at most)"
        )
    least, most = min(share for *_, share in tied), max(share for *_, share in tied)
    off = (
        format_percent(most) if most - least < 5e-4 else f"{least * 100:.1f} to {most * 100:.1f} %"
    )
    return (
        f"{format_ranks([rank for rank, *_ in tied])} cannot be distinguished from #1: predicted "
        f"within {format_percent(max(lead for _, lead, _ in tied))} of it, while for measured "
        f"layouts that differ as much, one in {round(1 / (1 - LEVEL))} predicted differences was "
        f"off by more than {off}"
    )
