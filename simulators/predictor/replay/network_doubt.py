"""What is counted of a network between nodes that nobody validated, and what would tell more."""

from __future__ import annotations

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.fabric import (
    SLOW_QUARTILE,
    counted_share,
    fabric_error,
    share_between,
)

UNVALIDATED = "the network between nodes is unvalidated"
"""What the statement begins with where only a part of a network is counted, or might be."""
# Below this share of a step nobody need measure anything.
_WORTH_SAYING = 0.01


def stated_share(cluster: Cluster, *, switches: bool) -> str | None:
    """What of the network is counted, in words; None where nobody's word is missing. ``switches``
    that are declared count whole."""
    counted = counted_share(cluster)
    if counted == 1:
        return None
    if switches:
        return f"{UNVALIDATED}: its NICs count whole with network=, {counted:.0%} without"
    return (
        f"{UNVALIDATED}: {counted:.0%} of what its NICs carry is counted, about what published "
        "runs on such networks fit best (cluster.oversubscription=1 counts all)"
    )


def network_doubt(
    job: Job, prediction: Prediction, *, switches: bool, calibrated: bool
) -> tuple[str, ...]:
    """What a prediction takes for granted of the network between nodes, and how that would shrink;
    none where there is nothing to gain. ``calibrated`` by runs of the cluster, nobody need measure
    it; nor are collectives measured for switches."""
    stated = stated_share(job.cluster, switches=switches)
    seconds, parts = prediction.step_time_s, prediction.breakdown_s
    error = fabric_error(job, seconds, parts)
    if error < _WORTH_SAYING or calibrated or switches:
        return () if stated is None else (stated,)
    would_tell = (
        f"no collectives were measured between {job.cluster.num_nodes} nodes, where "
        f"{share_between(job, seconds, parts):.0%} of the step is: {error:.0%} of it may be that "
        f"alone; {' and '.join(_leaving(job))} of 8 KiB to 512 MiB over 2 and all nodes would "
        "tell (cluster.measured_collectives)"
    )
    return (would_tell if stated is None else f"{stated}; {would_tell}",)


def slow_network_doubt(step_time_s: float, slow_s: float) -> tuple[str, ...]:
    """How much longer the step ``on_slow_network`` takes, in words."""
    longer = slow_s / step_time_s - 1
    if longer < _WORTH_SAYING:
        return ()
    return (
        f"the step takes {longer:.0%} longer where the network takes {SLOW_QUARTILE:g} times as "
        "long, as for a quarter of unvalidated ones: the error bar allows for it",
    )


def _leaving(job: Job) -> list[str]:
    """The collectives that most of what leaves a node goes by: those measured count as they were,
    all others as NICs carry them."""
    sharded = job.recipe.zero_stage > 0
    kinds = ["all_gather", "reduce_scatter"] if sharded else ["all_reduce"]
    return [*kinds, *(["all_to_all"] if job.etp * job.recipe.ep > job.cluster.domain else [])]
