"""The validation result as one JSON-ready dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainscout.simulators.laboratory.score import (
    Summary,
    as_dicts,
    summarise,
    summarise_by,
    summarise_known,
)
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.memory.bands import BANDS, NO
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import ACTIVATION_BYTES
from trainscout.simulators.predictor.uncertainty.interval import LEVEL
from trainscout.simulators.predictor.uncertainty.table import published_residuals

from .layouts import rank_layouts
from .published import PeerPrediction
from .reading.groups import family_group, scale_group, source_group
from .reading.words import statement_of
from .replay import Result

GROUPINGS: Mapping[str, Callable[[Result], str]] = {
    "by_source": lambda result: source_group(result.row),
    "by_gpu": lambda result: result.row.gpu,
    "by_family": lambda result: family_group(result.row),
    "by_scale": lambda result: scale_group(_num_gpus(result)),
    "by_precision": lambda result: result.row.dtype or "not published",
    "by_layers": lambda result: "with experts" if result.row.num_experts else "dense",
}


def validation_report(
    results: Sequence[Result],
    counted: Iterable[str],
    peers: Sequence[PeerPrediction],
    unread_columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Summaries and rows of a validation; errors are fractions of the measured value.

    Args:
        results: every row, predicted or not.
        counted: the quality grades that enter the summaries; rows of other grades are listed
            with ``counted: false``, as are extrapolated rows of any grade.
        peers: what other simulators predict for rows that may be among the results.
        unread_columns: columns of the table that nothing reads, as they are to be shown.

    Returns:
        ``overall`` and one ``by_...`` dictionary per grouping with the fields of ``Summary``
        for step times; ``memory`` with the same for memory and the number of runs predicted
        not to fit though they ran; ``coverage`` as
        ``coverage_of`` gives it; ``extrapolated`` with the summaries of publications whose times
        are too regular to have been measured, which enter nothing else; ``layouts`` with the
        fields of ``Ranking`` per sweep; ``baseline`` with the flat baseline by source and, per set
        of published cases, beside ours and the peers'; ``rows`` for what was predicted;
        ``skipped`` with the reason for what was not.
    """
    grades = set(counted)
    graded = [result for result in results if result.row.quality in grades]
    inside = [result for result in graded if not result.row.extrapolated]
    # A row that publishes nothing but memory has no step time to miss.
    timed = [result for result in inside if result.memory is None or result.measured_s is not None]
    weighed = [result for result in inside if result.row.measured_peak_mem_gib is not None]
    predicted = [result for result in inside if result.error is not None]
    return {
        "quality": sorted(grades),
        "unread_columns": list(unread_columns),
        **_summaries(timed, lambda result: result.error),
        "memory": {
            **_summaries(weighed, lambda result: result.memory_error),
            "bands": _bands(inside),
            "ran_but_predicted_not_to_fit": _bands(inside)["all"][NO],
        },
        "coverage": coverage_of(inside),
        "extrapolated": as_dicts(
            summarise_by(
                [result for result in graded if result.row.extrapolated],
                GROUPINGS["by_source"],
                lambda result: result.error,
            )
        ),
        "layouts": {name: asdict(found) for name, found in rank_layouts(inside).items()},
        "baseline": {
            "by_source": as_dicts(summarise_by(predicted, GROUPINGS["by_source"], flat_error)),
            "sets": {name: asdict(one) for name, one in compare_sets(inside, peers).items()},
        },
        "rows": [_row(result, grades) for result in results if result.prediction is not None],
        "skipped": [
            {"id": result.row.id, "reason": result.reason}
            for result in results
            if result.prediction is None
        ],
    }


def _bands(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    """Runs by source and by the band that their memory is predicted to lie in."""
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        if result.band is not None:
            for name in (source_group(result.row), "all"):
                counts.setdefault(name, dict.fromkeys(BANDS, 0))
                counts[name][result.band] += 1
    everything = counts.pop("all", dict.fromkeys(BANDS, 0))
    return {**dict(sorted(counts.items())), "all": everything}


def _summaries(
    results: Sequence[Result], error: Callable[[Result], float | None]
) -> dict[str, Any]:
    overall = summarise_known([error(result) for result in results])
    groups = {name: as_dicts(summarise_by(results, key, error)) for name, key in GROUPINGS.items()}
    return {"overall": overall.to_dict(), **groups}


def _row(result: Result, grades: set[str]) -> dict[str, Any]:
    prediction, row, memory = result.prediction, result.row, result.memory
    assert prediction is not None
    return {
        "id": row.id,
        "source": row.source,
        "group": source_group(row),
        "gpu": row.gpu,
        "num_gpus": _num_gpus(result),
        "model": row.model,
        "precision": GROUPINGS["by_precision"](result),
        "quality": row.quality,
        "counted": row.quality in grades and not row.extrapolated,
        "extrapolated": row.extrapolated,
        "measured": result.measured_s,
        "predicted": prediction.step_time_s,
        "error": result.error,
        "fits": result.band,
        "fit_probability": (result.needs or prediction.memory).fit_probability,
        "framework": result.job.framework.name if result.job is not None else None,
        "assumptions": list(result.assumptions),
        "unread": list(statement_of(row).unread),
        "memory_kind": None if memory is None else memory.kind,
        "measured_memory_bytes": None if memory is None else memory.measured_bytes,
        "predicted_memory_bytes": None if memory is None else memory.predicted_bytes,
        "memory_error": result.memory_error,
        "breakdown_s": prediction.breakdown_s,
        "interval_s": prediction.interval_s,
    }


def _num_gpus(result: Result) -> int | None:
    return result.job.world_size if result.job is not None else result.row.num_gpus


def coverage_of(results: Sequence[Result]) -> dict[str, Any]:
    """Shares of the measured runs inside their interval; None where there is no run.

    ``inside`` counts all ``n`` runs with an interval. Of those, ``inside_unseen`` counts only the
    ``n_unseen`` runs that the error bars were not made from (by id): for published rows, which
    they were made from, see the figures of runs left out in ``docs/accuracy.md``.
    """
    seen = published_residuals().ids
    held: list[tuple[bool, bool]] = []
    for result in results:
        interval = result.prediction and result.prediction.interval_s
        if interval and result.measured_s is not None:
            inside = interval[0] <= result.measured_s <= interval[1]
            held.append((inside, result.row.id in seen))
    unseen = [inside for inside, known in held if not known]
    return {
        "level": LEVEL,
        "n": len(held),
        "inside": _share([inside for inside, _ in held]),
        "n_unseen": len(unseen),
        "inside_unseen": _share(unseen),
    }


def _share(held: Sequence[bool]) -> float | None:
    return sum(held) / len(held) if held else None


@dataclass(frozen=True)
class Comparison:
    """One set of published cases; every summary is over the rows that both sides predict.

    ``peers`` maps a simulator's name to its own summary.
    """

    ours: Summary
    flat_baseline: Summary
    peers: Mapping[str, Summary]


def flat_error(result: Result) -> float | None:
    """Relative error of the flat baseline on a row, or None when there is nothing to compare."""
    if result.job is None or result.measured_s is None:
        return None
    return flat_step_time_s(result.job) / result.measured_s - 1


def compare_sets(
    results: Sequence[Result], peers: Sequence[PeerPrediction]
) -> dict[str, Comparison]:
    """Every set of published cases of which at least one row is among the results."""
    by_id = {result.row.id: result for result in results if result.error is not None}
    sets: dict[str, list[PeerPrediction]] = {}
    for prediction in peers:
        if prediction.row_id in by_id:
            sets.setdefault(prediction.case_set, []).append(prediction)
    return {name: _comparison(members, by_id) for name, members in sets.items()}


def _comparison(predictions: Sequence[PeerPrediction], by_id: Mapping[str, Result]) -> Comparison:
    rows = [by_id[row_id] for row_id in dict.fromkeys(item.row_id for item in predictions)]
    errors: dict[str, list[float]] = {}
    for item in predictions:
        measured = by_id[item.row_id].measured_s
        if measured is not None:
            errors.setdefault(item.peer, []).append(item.predicted_s / measured - 1)
    return Comparison(
        ours=summarise([row.error for row in rows if row.error is not None]),
        flat_baseline=summarise([error for row in rows if (error := flat_error(row)) is not None]),
        peers={peer: summarise(errors[peer]) for peer in sorted(errors)},
    )


FLAT_EFFICIENCY = 0.5


def flat_step_time_s(job: Job) -> float:
    """Seconds of a step at a flat share of peak, without bubble, optimizer or data parallelism.

    The step's hardware FLOPs run at ``FLAT_EFFICIENCY`` of the dense peak. Each layer of each
    micro-batch adds two all-reduces of its activations in the forward and two in the backward
    pass (two more where the forward is recomputed), at the ring's ``2 (t - 1) / t`` of NVLink's
    published bandwidth (of the NIC's where the group leaves the NVLink domain). This is what
    the analytical calculators print that know no pipeline (llm-analysis at its suggested
    efficiency).
    """
    recipe = job.recipe
    flops_s = step_flops(job).hardware / (
        job.world_size * FLAT_EFFICIENCY * job.gpu.peak(job.precision)
    )
    if recipe.tp == 1:
        return flops_s
    passes = 6 if recipe.recompute == "full" else 4
    tokens = recipe.micro_batch * job.sequence_length / recipe.cp
    message = tokens * job.model.hidden_size * ACTIVATION_BYTES[job.precision]
    ring = 2 * (recipe.tp - 1) / recipe.tp
    layers = job.model.num_layers / recipe.pp
    calls = passes * layers * job.num_micro_batches
    return flops_s + calls * message * ring / _bytes_per_s(job)


def _bytes_per_s(job: Job) -> float:
    cluster = job.cluster
    if job.recipe.tp <= cluster.domain and job.gpu.nvlink_bytes_per_s:
        return job.gpu.nvlink_bytes_per_s
    if job.recipe.tp <= cluster.gpus_per_node:
        return job.gpu.pcie_bytes_per_s
    return cluster.nics_per_node * cluster.nic_gbps * 1e9 / 8 / cluster.gpus_per_node
