"""Our errors beside those of the flat baseline and of other simulators, row for row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.laboratory.published.published import PeerPrediction
from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.laboratory.score import Summary, as_dicts, summarise
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import ACTIVATION_BYTES


@dataclass(frozen=True)
class Comparison:
    """One set of published cases; every summary is over the rows that both sides predict.

    ``peers`` maps a simulator's name to its own summary.
    """

    ours: Summary
    flat: Summary
    peers: Mapping[str, Summary]

    def to_dict(self) -> dict[str, Any]:
        return {
            "ours": self.ours.to_dict(),
            "flat_baseline": self.flat.to_dict(),
            "peers": as_dicts(self.peers),
        }


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
        flat=summarise([error for row in rows if (error := flat_error(row)) is not None]),
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
