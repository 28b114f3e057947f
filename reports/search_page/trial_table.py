"""Every trial as columns, which take a fraction of the room that rows of names would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import fields
from typing import Any

from trainscout.optimizer.trial import Trial
from trainscout.reports.explain import JobOf
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_recipe
from trainscout.simulators.predictor.question.recipe import Recipe

# A page of more would be larger than mail and browsers like; ``trials.csv`` always has all.
MOST_TRIALS = 20_000
_DIGITS = 6


def trial_table(
    trials: Sequence[Trial],
    objectives: Sequence[str],
    job_of: JobOf,
    most: int = MOST_TRIALS,
    shown: Sequence[Trial] = (),
) -> dict[str, Any]:
    """Columns of equal length ``count``: ``number``, ``words``, and as codes into ``values``
    ``status``, ``rule``, ``reason`` and the ``knobs`` in which trials differ (-1: none).

    ``simulated`` has the figures of the ``row`` of each trial with a prediction; ``objectives``
    the values of each trial that has any. Of more than ``most`` trials those without a prediction
    are left out first, and those ``shown`` in other figures never; ``omitted`` counts them.
    """
    kept = _kept(trials, most, {trial.number for trial in shown})
    dps = [None if trial.status == "invalid" else job_of(trial.recipe).dp for trial in kept]
    simulated = [(row, trial) for row, trial in enumerate(kept) if trial.prediction is not None]
    return {
        "count": len(kept),
        "omitted": len(trials) - len(kept),
        "number": [trial.number for trial in kept],
        "words": [format_recipe(t.recipe, dp) for t, dp in zip(kept, dps, strict=True)],
        "status": _coded(trial.status for trial in kept),
        "rule": _coded(trial.rule for trial in kept),
        "reason": _coded(trial.reason for trial in kept),
        "knobs": _knobs(kept, dps),
        "objectives": [
            {
                "name": name,
                "values": [None if t.values is None else _short(t.values[at]) for t in kept],
            }
            for at, name in enumerate(objectives)
        ],
        "simulated": _simulated(simulated),
    }


def _kept(trials: Sequence[Trial], most: int, shown: Set[int]) -> list[Trial]:
    if len(trials) <= most:
        return list(trials)
    ranked = sorted(trials, key=lambda t: (t.number not in shown, t.prediction is None))
    return sorted(ranked[:most], key=lambda trial: trial.number)


def _simulated(rows: Sequence[tuple[int, Trial]]) -> dict[str, list[Any]]:
    found = [predicted(trial) for _, trial in rows]
    short = ("step_time_s", "mfu", "tokens_per_s_per_gpu", "cost_of_run_usd")
    return {
        "row": [row for row, _ in rows],
        **{name: [_short(getattr(each, name)) for each in found] for name in short},
        "needed_bytes": [each.memory.needed_bytes for each in found],
        "headroom_bytes": [each.memory.headroom_bytes for each in found],
    }


def _knobs(trials: Sequence[Trial], dps: Sequence[int | None]) -> list[dict[str, Any]]:
    columns: list[tuple[str, list[Any]]] = [
        (field.name, [getattr(trial.recipe, field.name) for trial in trials])
        for field in fields(Recipe)
    ]
    columns.insert(2, ("dp", list(dps)))
    return [{"name": name, **_coded(values)} for name, values in columns if len(set(values)) > 1]


def _coded(values: Iterable[Any]) -> dict[str, list[Any]]:
    """``values`` without repetition, ascending where they can be compared, and the ``code`` of
    each entry: its place among them, -1 for None."""
    listed = list(values)
    distinct = {value for value in listed if value is not None}
    numbers = all(isinstance(value, int | float) for value in distinct)
    known = sorted(distinct) if numbers else sorted(distinct, key=str)
    code = {value: at for at, value in enumerate(known)}
    return {"values": known, "code": [code.get(value, -1) for value in listed]}


def _short(value: float | None) -> float | None:
    """Six significant digits: more than a prediction is worth."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")
