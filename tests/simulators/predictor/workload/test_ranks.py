"""Global ranks: coordinates and groups, as Megatron-LM orders them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.samples import CLUSTER, GPU, MODEL, MOE_MODEL
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.workload.communicators import communicators, spans
from trainscout.simulators.predictor.workload.ranks import group_of, place_of, stage_rank


def job_of(recipe: Recipe, nodes: int = 4, experts: bool = False) -> Job:
    model = MOE_MODEL if experts else MODEL
    cluster = replace(CLUSTER, num_nodes=nodes)
    return Job(model, GPU, cluster, Training(256, 1e9), recipe)


def test_coordinates_of_megatrons_default_order() -> None:
    # 32 ranks: tp 2, cp 2, dp 2, pp 4; innermost first.
    job = job_of(Recipe(tp=2, cp=2, pp=4))
    place = place_of(job, 0b10111)
    assert (place.tp, place.cp, place.dp, place.stage) == (1, 1, 1, 2)
    assert group_of(job, "tp", 23) == (22, 23)
    assert group_of(job, "cp", 23) == (21, 23)
    assert group_of(job, "dp", 23) == (17, 19, 21, 23)
    assert group_of(job, "pp", 23) == (7, 15, 23, 31)
    assert group_of(job, "embedding", 7) == (7, 31)
    assert group_of(job, "tp_cp", 23) == (20, 21, 22, 23)
    assert group_of(job, "stage", 23) == tuple(range(16, 24))
    assert stage_rank(job, 2) == 16


def test_stages_lie_next_to_each_other_where_the_recipe_says_so() -> None:
    job = job_of(Recipe(tp=2, pp=4, use_tp_pp_dp_mapping=True))
    assert group_of(job, "pp", 1) == (1, 3, 5, 7)
    assert group_of(job, "dp", 1) == (1, 9, 17, 25)
    assert place_of(job, 13).stage == 2
    assert place_of(job, 13).dp == 1


def test_experts_have_coordinates_of_their_own() -> None:
    job = job_of(Recipe(tp=2, ep=4, etp=1), experts=True)
    assert group_of(job, "ep", 6) == (4, 5, 6, 7)
    assert place_of(job, 6).ep == 2
    assert group_of(job, "expert_dp", 6) == tuple(range(2, 32, 4))


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4]),
    apart=st.booleans(),
)
def test_groups_tile_the_ranks_and_have_the_priced_size(
    tp: int, cp: int, pp: int, ep: int, apart: bool
) -> None:
    job = job_of(
        Recipe(tp=tp, cp=cp, pp=pp, ep=ep, use_tp_pp_dp_mapping=apart and ep == 1),
        experts=True,
    )
    assume(32 % (tp * cp * pp) == 0 and 32 % (job.etp * ep * pp) == 0)
    sizes = communicators(job)
    for name in spans(job):
        if name == "embedding":
            continue
        seen: dict[int, tuple[int, ...]] = {}
        for rank in range(job.world_size):
            group = group_of(job, name, rank)
            assert rank in group
            assert len(group) == sizes[name].size
            assert seen.setdefault(group[0], group) == group
    for rank in range(job.world_size):
        place = place_of(job, rank)
        assert place_of(job, group_of(job, "tp", rank)[0]) == replace(
            place, tp=0, ep=place_of(job, group_of(job, "tp", rank)[0]).ep
        )
        assert group_of(job, "pp", rank)[place.stage] == rank
        assert stage_rank(job, place.stage) in group_of(job, "stage", rank)


@pytest.mark.parametrize("rank", [-1, 32])
def test_refuses_ranks_that_are_not_there(rank: int) -> None:
    with pytest.raises(InputError, match="0 to 31"):
        place_of(job_of(Recipe()), rank)


def test_refuses_communicators_and_members_that_are_not_there() -> None:
    job = job_of(Recipe(pp=4))
    with pytest.raises(InputError, match="no known ranks"):
        group_of(job, "world", 0)
    with pytest.raises(InputError, match="no embedding"):
        group_of(job, "embedding", 8)
