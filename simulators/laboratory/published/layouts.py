"""Layout sweeps: does the model rank measured recipes as the machine did?

A sweep is a set of rows that did the same work under the same conditions and differ in their
recipe. A step is ranked by seconds times GPUs per model FLOP, the inverse of its utilisation; in
a sweep of one model that is the order of step times, and where a project varied the model along
with the layout it is what it chose by.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.job import Job

from .jobs.era import era_of
from .reading.groups import source_group
from .reading.words import statement_of
from .replay import Result

MIN_LAYOUTS = 5

# Parts of a row's notes that name a condition under which its neighbours were not measured.
_CONDITIONS = re.compile(
    r"tuning|accumulation|optimizer|cuda graph|dispatcher|a2a|all-to-all|compile|eager|float8|"
    r"router|edition|vboost|anomal|outlier"
)
_VARIES_MODEL = ("BigScience A100",)


@dataclass(frozen=True)
class Ranking:
    """``n`` layouts of one sweep: Kendall's tau-b between predicted and measured order (1 is
    the same order), and by what fraction the layout we would pick is slower than the best."""

    n: int
    kendall_tau: float
    selection_regret: float


def rank_layouts(results: Sequence[Result]) -> dict[str, Ranking]:
    """Every sweep of at least ``MIN_LAYOUTS`` layouts among the results, by name."""
    sweeps: dict[Hashable, list[Result]] = {}
    for result in results:
        if result.job is not None and result.error is not None:
            sweeps.setdefault(sweep_of(result), []).append(result)
    rankings: dict[str, Ranking] = {}
    for members in sweeps.values():
        measured, predicted = _layouts(members)
        if len(measured) >= MIN_LAYOUTS and len(set(measured)) > 1:
            name = _name(members[0])
            repeated = sum(known == name or known.startswith(f"{name} #") for known in rankings)
            numbered = f"{name} #{repeated + 1}" if repeated else name
            rankings[numbered] = ranking(measured, predicted)
    return dict(sorted(rankings.items()))


def ranking(measured: Sequence[float], predicted: Sequence[float]) -> Ranking:
    """Rank agreement of paired costs, lower being better.

    Kendall's tau-b counts ties. The regret is that of the lowest predicted cost; among equal
    predictions the first is picked.
    """
    from scipy.stats import kendalltau

    tau = float(kendalltau(measured, predicted).statistic)
    picked = measured[int(np.argmin(predicted))]
    return Ranking(len(measured), 0.0 if np.isnan(tau) else tau, picked / min(measured) - 1)


def together(sweeps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What sweeps, each with the fields of ``Ranking``, come to: their layouts, by which tau is
    weighted, the median regret, and the worst."""
    layouts, taus, regrets = (
        [sweep[of] for sweep in sweeps] for of in ("n", "kendall_tau", "selection_regret")
    )
    return {
        "n": sum(layouts),
        "kendall_tau": float(np.average(taus, weights=layouts)),
        "selection_regret": float(np.median(regrets)),
        "worst_regret": max(regrets),
    }


def _layouts(members: Sequence[Result]) -> tuple[list[float], list[float]]:
    """Measured and predicted cost of each distinct layout; repeated measurements are averaged."""
    costs: dict[Hashable, list[tuple[float, float]]] = {}
    for result in members:
        job, prediction = result.job, result.prediction
        assert job is not None
        assert prediction is not None
        assert result.measured_s is not None
        scale = job.world_size / step_flops(job).model
        cost = result.measured_s * scale, prediction.step_time_s * scale
        costs.setdefault((job.recipe, _shape(job)), []).append(cost)
    means = [np.mean(pairs, axis=0) for pairs in costs.values()]
    return [float(mean[0]) for mean in means], [float(mean[1]) for mean in means]


def sweep_of(result: Result) -> Hashable:
    """What the rows of one sweep have in common; of a row with a job."""
    job, row = result.job, result.row
    assert job is not None
    parts = (part.strip() for part in row.notes.lower().split(";"))
    conditions = frozenset(re.sub(r"\d+", "", part) for part in parts if _CONDITIONS.search(part))
    source = source_group(row)
    if source in _VARIES_MODEL:
        return source, job.gpu.name, conditions
    return (
        source,
        job.gpu.name,
        job.world_size,
        job.training,
        job.sequence_length,
        job.precision,
        job.framework.name,
        era_of(row, statement_of(row)).year,
        conditions,
        _shape(job),
    )


def _shape(job: Job) -> Hashable:
    model = job.model
    return (
        model.num_layers,
        model.hidden_size,
        model.num_heads,
        model.kv_heads,
        model.ffn_hidden_size,
        model.vocab_size,
        model.moe,
        job.sequence_length,
    )


def _name(result: Result) -> str:
    job, source = result.job, source_group(result.row)
    assert job is not None
    if source in _VARIES_MODEL:
        notes = result.row.notes.lower()
        block = "fp16 gradients, before tuning"
        if "fp32 gradient" in notes:
            block = "BF16 optimizer, fp32 gradients"
        elif "after pcie" in notes:
            block = "fp16 gradients, after tuning"
        return f"{source}: {block}"
    name = f"{source}: {result.row.model}, {job.world_size} GPUs"
    return f"{name}, batch {job.training.global_batch_size}, {job.precision}"
