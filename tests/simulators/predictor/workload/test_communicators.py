"""Where groups lie, against enumerating every rank in Megatron's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import GPT175B, MOE, TINY, make_job
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.communicators import (
    communicators,
    paired,
    place,
    spans,
)


def groups_of(job: Job) -> dict[str, list[list[int]]]:
    """All groups of every dimension as lists of ranks: tp, cp, dp, pp from the inside out, or
    tp, cp, pp, dp."""
    r, dp = job.recipe, job.dp
    sharing = r.tp * r.cp
    close = r.use_tp_pp_dp_mapping

    def stage(rank: int) -> int:
        return rank // sharing % r.pp if close else rank // (sharing * dp)

    def pipeline(rank: int) -> object:
        """What ranks of one pipeline have in common."""
        return (rank % sharing, rank // (sharing * r.pp)) if close else rank % (sharing * dp)

    def by(key: Callable[[int], object], ranks: range | list[int]) -> list[list[int]]:
        found: dict[object, list[int]] = {}
        for rank in ranks:
            found.setdefault(key(rank), []).append(rank)
        return list(found.values())

    everyone = range(job.world_size)
    ends = [rank for rank in everyone if stage(rank) in (0, r.pp - 1)]
    groups = {
        "tp": by(lambda rank: rank // r.tp, everyone),
        "cp": by(lambda rank: (rank % r.tp, rank // (r.tp * r.cp)), everyone),
        "dp": by(lambda rank: (rank % r.tp, stage(rank)), everyone),
        "pp": by(pipeline, everyone),
        "model": by(
            lambda rank: (
                (rank % sharing // r.tp, rank // (sharing * r.pp))
                if close
                else rank % (sharing * dp) // r.tp
            ),
            everyone,
        ),
        "embedding": by(pipeline, ends),
    }
    if job.model.moe is not None:
        etp, ep = job.etp, r.ep
        groups |= {
            "etp": by(lambda rank: rank // etp, everyone),
            "ep": by(lambda rank: (rank % etp, rank // (etp * ep)), everyone),
            "etp_ep": by(lambda rank: rank // (etp * ep), everyone),
            "expert_dp": by(lambda rank: (rank % (etp * ep), stage(rank)), everyone),
        }
    return groups


@given(
    model=st.sampled_from([TINY, MOE]),
    gpus_per_node=st.sampled_from([4, 8]),
    nvlink_domain=st.sampled_from([None, None, 1, 2]),
    nodes=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    etp=st.sampled_from([None, 1]),
    use_tp_pp_dp_mapping=st.booleans(),
)
def test_placement_is_that_of_the_enumerated_ranks(
    model: Any, gpus_per_node: int, nvlink_domain: int | None, nodes: int, **recipe: Any
) -> None:
    sp = model.moe is not None and recipe["tp"] > 1
    job = make_job(model, nodes=nodes, gpus_per_node=gpus_per_node, batch=256, sp=sp, **recipe)
    job = replace(job, cluster=replace(job.cluster, nvlink_domain=nvlink_domain))
    domain = job.cluster.domain
    if why_invalid(job) is not None:
        return
    ours = communicators(job)
    groups = groups_of(job)
    assert set(ours) == set(groups)
    for name, enumerated in groups.items():
        group = ours[name]
        for ranks in enumerated:
            per_domain = Counter(rank // domain for rank in ranks)
            assert len(ranks) == group.size
            assert set(per_domain.values()) == {group.ranks_per_node}, name
            assert len(per_domain) == group.nodes, name
            assert len({rank // gpus_per_node for rank in ranks}) == group.servers, name
        if group.nodes > 1 and name != "embedding":
            # Groups with a member in the first domain share its NICs.
            on_first = sum(any(rank < domain for rank in ranks) for ranks in enumerated)
            assert group.siblings == on_first, name


@given(
    size=st.integers(1, 64),
    stride=st.integers(1, 64),
    domain=st.sampled_from([1, 2, 3, 4, 6, 8, 36, 72]),
)
def test_members_multiply_out_whatever_the_layout(size: int, stride: int, domain: int) -> None:
    job = make_job(TINY, nodes=512, gpus_per_node=8)
    job = replace(job, cluster=replace(job.cluster, nvlink_domain=domain))
    group = place("dp", size, stride, job)
    assert group.ranks_per_node * group.nodes == group.size == size
    assert 1 <= group.ranks_per_node <= domain
    assert group.siblings >= 1


@pytest.mark.parametrize(
    ("nvlink_domain", "ranks_per_node", "nodes"), [(None, 8, 2), (16, 16, 1), (2, 2, 8)]
)
def test_nvlink_domains_are_not_nodes(
    nvlink_domain: int | None, ranks_per_node: int, nodes: int
) -> None:
    job = make_job(GPT175B, nodes=4)
    job = replace(job, cluster=replace(job.cluster, nvlink_domain=nvlink_domain))
    group = place("tp", 16, 1, job)
    assert (group.ranks_per_node, group.nodes) == (ranks_per_node, nodes)


def test_first_and_last_stage_on_one_node_share_it() -> None:
    job = make_job(TINY, pp=4, tp=2)
    group = communicators(job)["embedding"]
    assert (group.size, group.ranks_per_node, group.nodes) == (2, 2, 1)


def enumerated_spans(job: Job) -> dict[str, list[list[int]]]:
    """Groups as ``spans`` says they lie."""
    found = {}
    for name, span in spans(job).items():
        offsets = [
            sum(step * stride for step, (_, stride) in zip(place, span, strict=True))
            for place in product(*(range(count) for count, _ in span))
        ]
        firsts = [
            rank
            for rank in range(job.world_size)
            if all(rank // stride % count == 0 for count, stride in span)
        ]
        found[name] = [sorted(first + offset for offset in offsets) for first in firsts]
    return found


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(
    "recipe",
    [
        {"tp": 2, "pp": 4, "cp": 2},
        {"tp": 8, "pp": 2},
        {"tp": 2, "pp": 2, "cp": 2, "ep": 2, "etp": 2, "sp": True},
    ],
)
def test_spans_are_the_groups_themselves(recipe: Any, close: bool) -> None:
    model = MOE if "ep" in recipe else TINY
    job = make_job(model, nodes=4, batch=256, use_tp_pp_dp_mapping=close, **recipe)
    assert why_invalid(job) is None
    expected = groups_of(job)
    for name, found in enumerated_spans(job).items():
        if name != "embedding":
            assert sorted(found) == sorted(expected[name]), name


def test_pipelines_next_to_each_other_need_stages_of_one_size() -> None:
    job = make_job(MOE, nodes=4, batch=256, pp=2, ep=4, use_tp_pp_dp_mapping=True)
    violation = why_invalid(job)
    assert violation is not None
    assert violation.field == "use_tp_pp_dp_mapping"


def test_tokens_stages_and_rings_go_from_one_to_one() -> None:
    def pairs(**recipe: Any) -> dict[str, int]:
        return paired(make_job(MOE, nodes=4, batch=256, **recipe))

    assert pairs(ep=8, pp=4) == {"ep": 7, "pp": 2}
    assert pairs(ep=8, moe_dispatcher="deepep", pp=2) == {"pp": 1}
    assert pairs(cp=4) == {"cp": 1}
    assert pairs(cp=4, cp_comm_type="a2a") == {"cp": 3}
    assert pairs(cp=4, cp_comm_type="all_gather") == {}
