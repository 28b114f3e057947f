"""What sharing links costs a step: nothing where nothing is shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import fabric_named
from tests.simulators.predictor.replay.test_congestion import EXPERTS as DEEP_EXPERTS
from tests.simulators.predictor.replay.test_congestion import (
    FULL,
    HALF,
    HASHED,
    MIXTRAL,
    RECIPES,
)
from tests.simulators.predictor.replay.test_congestion import LLAMA as DEEP
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.network.neighbours import Neighbour
from trainscout.simulators.predictor.network.together.activities import Activities
from trainscout.simulators.predictor.network.together.play import PlayedTogether, play_together
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.whole_step import WholeStep, whole_step
from trainscout.simulators.predictor.workload.megatron import build_workload

# What meets does so layer by layer: few layers say as much as many.
LLAMA, EXPERTS = (
    replace(each, model=replace(each.model, num_layers=8)) for each in (DEEP, DEEP_EXPERTS)
)
SHORT = replace(
    LLAMA,
    model=replace(LLAMA.model, num_layers=4),
    training=replace(LLAMA.training, global_batch_size=64),
)


def _sharing_nics(of: Question, nics: int) -> Question:
    return replace(of, cluster=replace(of.cluster, nics_per_node=nics))


OVERLAPPED = Recipe(
    tp=2, sp=True, pp=2, recompute="full", overlap_grad_reduce=True, overlap_param_gather=True
)
JOBS = [
    *(LLAMA.job(recipe) for recipe in (*RECIPES, OVERLAPPED)),
    EXPERTS.job(replace(MIXTRAL, etp=2, tp=2, sp=True, pp=1)),
    EXPERTS.job(MIXTRAL),
    # A NIC of two or four GPUs, as prices count it.
    _sharing_nics(LLAMA, 4).job(RECIPES[0]),
    _sharing_nics(LLAMA, 2).job(Recipe(recompute="full", zero_stage=3, dp_shard=8)),
    _sharing_nics(EXPERTS, 2).job(MIXTRAL),
]


def played(job: Job, fabric: Any, **choice: Any) -> WholeStep:
    network = CongestedNetwork(NetworkChoice(**{"engine": "flow", **choice}), fabric)
    found = whole_step(job, build_workload(job), network)
    assert found is not None
    return found


@pytest.mark.parametrize("job", JOBS)
def test_a_network_on_which_nothing_is_shared_costs_nothing(job: Job) -> None:
    """Over each NIC sends what prices have sent over it, and nothing else limits."""
    found = played(job, FULL)
    assert found.reached == 1
    for seconds in (found.priced_s, found.apart_s):
        assert seconds == pytest.approx(found.alone_s, rel=1e-6)


@pytest.mark.parametrize("queue_pairs", [1, 2])
def test_ports_of_a_nic_each_send_their_part_between_stages(queue_pairs: int) -> None:
    job = SHORT.job(Recipe(tp=8, sp=True, pp=4, recompute="full"))
    found = played(job, replace(FULL, planes=2), queue_pairs=queue_pairs)
    (between,) = [each for each in found.slowdowns if each.communicator == "pp"]
    assert between.together_s == pytest.approx(between.alone_s, rel=1e-6)


def test_what_a_host_waits_before_it_looks_shares_no_link() -> None:
    recipe = Recipe(tp=2, sp=True, pp=2, recompute="full")
    plain, polls = (
        replace(LLAMA, framework=replace(LLAMA.framework, p2p_poll_s=poll_s)).job(recipe)
        for poll_s in (0.0, 0.5)
    )
    found = [played(each, HALF) for each in (plain, polls)]
    late_s = [each.apart_s - each.alone_s for each in found]
    assert late_s[0] > 0.01
    assert late_s[1] == pytest.approx(late_s[0], rel=0.2)


def test_what_has_one_dimension_shares_with_nobody() -> None:
    found = played(LLAMA.job(RECIPES[1]), HALF)
    assert found.together_s == pytest.approx(found.apart_s, rel=1e-9)
    assert found.apart_s == pytest.approx(found.priced_s, rel=0.01)
    assert found.apart_s > 1.01 * found.alone_s


def test_gradients_beside_passes_slow_what_goes_between_stages() -> None:
    found = played(LLAMA.job(OVERLAPPED), replace(HASHED, oversubscription=4.0))
    assert found.alone_s < found.apart_s < found.together_s
    by_name = {each.communicator: each for each in found.slowdowns}
    assert set(by_name) == {"dp", "pp"}
    assert by_name["pp"].together_s > by_name["pp"].alone_s
    assert found.busy.max() <= 1 + 1e-9


def test_engines_agree_on_a_small_step() -> None:
    job = SHORT.job(OVERLAPPED)
    fabric = fabric_named("leaf_spine", nics_per_leaf=16, oversubscription=2.0)
    fluid, hybrid = (
        played(job, fabric, engine=name, budget_s=60.0) for name in ("flow", "hybrid")
    )
    assert hybrid.reached == 1
    assert hybrid.together_s == pytest.approx(fluid.together_s, rel=0.02)


def test_a_budget_ends_with_what_is_known_so_far() -> None:
    found = played(SHORT.job(OVERLAPPED), HALF, engine="packet", budget_s=0.05)
    assert 0 <= found.reached < 1
    assert found.together_s >= found.alone_s


def test_the_cost_is_of_as_much_as_both_were_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step on one network gets far, the one on networks of their own does not."""

    def cut_short(of: Activities, *others: Any, apart: bool = False) -> PlayedTogether:
        found = play_together(of, *others[:2], apart=apart)
        last_s = found.end_s.max() * (0.3 if apart else 0.9)
        return replace(found, end_s=np.where(found.end_s <= last_s, found.end_s, np.inf))

    full = played(SHORT.job(OVERLAPPED), HALF, engine="flow")
    monkeypatch.setattr(
        "trainscout.simulators.predictor.replay.whole_step.play_together", cut_short
    )
    cut = played(SHORT.job(OVERLAPPED), HALF, engine="flow")
    assert cut.reached < 0.5
    assert cut.together_s - cut.alone_s < 0.6 * (full.together_s - full.alone_s)


def test_white_box_prices_have_nowhere_to_meet() -> None:
    with pytest.raises(InputError, match=r"network\.whole_step"):
        NetworkChoice(whole_step=True).check()
    with pytest.raises(InputError, match=r"network\.budget_s"):
        NetworkChoice(engine="flow", budget_s=0.0).check()


def test_a_step_is_played_whole_by_flows_unless_others_are_there() -> None:
    """What the page of what-ifs says: neighbours need no other setting."""
    beside = NetworkChoice(engine="flow", neighbours=(Neighbour(2),))
    beside.check()
    assert not beside.plays_whole_step
    assert NetworkChoice(engine="flow").plays_whole_step
    assert not NetworkChoice(engine="hybrid").plays_whole_step
    with pytest.raises(InputError, match=r"network\.whole_step"):
        replace(beside, whole_step=True).check()
