"""Communication of traced ranks that shares links: closed forms of NICs that several need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.samples import GPU
from tests.simulators.virtual_cluster.execution import scripts
from trainscout.simulators.predictor.collectives.price import price_collective, price_send_recv
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED
from trainscout.simulators.virtual_cluster.execution.answer import TracedStep
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traces.events import Trace
from trainscout.simulators.virtual_cluster.walk.communicators import communicator_of

# Two nodes of four GPUs that share one NIC, under one switch.
ONE_NIC = replace(scripts.PAIR, nics_per_node=1)
ONE_SWITCH = SwitchFabric("one", "test", tiers=1, nics_per_leaf=2, hop_latency_s=0.0)
SIZE = 64 * scripts.MIB
BIG, SMALL = 4096, 1024


def traces(write: Callable[[scripts.Script], None], ranks: range | tuple[int, ...]) -> list[Trace]:
    found = []
    for rank in ranks:
        script = scripts.Script(rank, 8)
        for each in range(4):
            if rank in (each, each + 4):
                script.group(f"dp{each}", each, each + 4)
        write(script)
        found.append(script.trace())
    return found


def both(write: Callable[[scripts.Script], None]) -> tuple[TracedStep, TracedStep]:
    """The step without sharing, and with it."""
    given = traces(write, range(8))
    return (
        replay_ranks(given, GPU, ONE_NIC, scripts.INSTANT),
        replay_ranks(given, GPU, ONE_NIC, scripts.INSTANT, switches=ONE_SWITCH),
    )


def alone_s(kind: str, size: int) -> tuple[float, float]:
    """What a transfer between nodes takes when nobody shares its NIC, and a few bytes of it."""
    group = replace(communicator_of("g", (0, 4), ONE_NIC), siblings=1)
    if kind == "send_recv":
        whole, few = (price_send_recv(each, True, group, GPU, ONE_NIC) for each in (size, 1))
    else:
        whole, few = (
            price_collective(kind, each, group, GPU, ONE_NIC, "bf16") for each in (size, 1)
        )
    return whole.seconds, few.seconds


def on_nics(*members: int) -> Callable[[scripts.Script], None]:
    """All-reduces of the groups of some places in the node, at the same time."""

    def write(script: scripts.Script) -> None:
        place = script.rank % 4
        script.gemm(SMALL)
        if place in members:
            script.collective(f"dp{place}", SIZE)

    return write


@pytest.mark.parametrize("members", [(0,), (0, 1), (0, 1, 2, 3)])
def test_groups_that_share_a_nic_take_as_long_as_it_carries_them(members: tuple[int, ...]) -> None:
    _, shared = both(on_nics(*members))
    whole_s, few_s = alone_s("all_reduce", SIZE)
    expected_s = few_s + len(members) * (whole_s - few_s)
    assert shared.step_time_s == pytest.approx(scripts.gemm_s(SMALL, 8) + expected_s, rel=1e-6)


def test_what_comes_later_shares_only_while_both_are_under_way() -> None:
    """Half-way through the one the other begins: both have half of the NIC until the first has
    sent all, at 1.5 times its price; then the other has it alone."""

    def write(script: scripts.Script) -> None:
        place = script.rank % 4
        if place == 1:
            script.gemm(BIG)
        if place in (0, 1):
            script.collective(f"dp{place}", SIZE)

    _, shared = both(write)
    whole_s, few_s = alone_s("all_reduce", SIZE)
    stream_s, later_s = whole_s - few_s, scripts.gemm_s(BIG, 8)
    assert 0 < later_s < stream_s
    # The NIC is never idle from the first transfer's bytes on.
    expected_s = few_s + 2 * stream_s
    assert shared.step_time_s == pytest.approx(expected_s, rel=1e-3)


def test_one_of_a_class_stands_for_all_on_the_nic() -> None:
    given = traces(on_nics(0, 1, 2, 3), (0,))
    whole = traces(on_nics(0, 1, 2, 3), range(8))
    steps = [
        replay_ranks(each, GPU, ONE_NIC, scripts.INSTANT, switches=ONE_SWITCH).step_time_s
        for each in (given, whole)
    ]
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)


def test_nothing_changes_where_nobody_shares() -> None:
    given = traces(on_nics(0, 1, 2, 3), range(8))
    rails = SwitchFabric("rails", "test", tiers=1, nics_per_leaf=8, hop_latency_s=0.0)
    steps = [
        replay_ranks(given, GPU, scripts.PAIR, scripts.INSTANT, switches=each).step_time_s
        for each in (None, rails)
    ]
    assert steps[0] == pytest.approx(steps[1], rel=1e-6)


def test_the_answer_says_what_of_an_unvalidated_network_is_counted() -> None:
    given = traces(on_nics(0), range(8))
    unknown = replace(ONE_NIC, oversubscription=None)
    for cluster, switches, words in (
        (ONE_NIC, None, ""),
        (unknown, None, "50% of what its NICs carry is counted"),
        (unknown, ONE_SWITCH, "count whole"),
    ):
        step = replay_ranks(given, GPU, cluster, scripts.INSTANT, switches=switches)
        stated = [each for each in step.assumptions if each.startswith(UNVALIDATED)]
        assert len(stated) == bool(words)
        assert words in "".join(stated)


def test_the_answer_says_what_sharing_cost() -> None:
    alone, shared = both(on_nics(0, 1))
    assert not any("shares the links" in each for each in alone.assumptions)
    assert any("shares the links of one" in each for each in shared.assumptions)


def test_switches_that_leave_ranks_apart_are_refused() -> None:
    apart = SwitchFabric("apart", "test", tiers=1, nics_per_leaf=1, hop_latency_s=0.0)
    with pytest.raises(InputError) as refused:
        replay_ranks(traces(on_nics(0), range(8)), GPU, ONE_NIC, scripts.INSTANT, switches=apart)
    assert refused.value.field.startswith("topology.")
