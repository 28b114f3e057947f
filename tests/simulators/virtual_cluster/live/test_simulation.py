"""Streams, rendezvous and waits against closed forms."""

from __future__ import annotations

import gc
import itertools

import pytest

from tests.simulators.virtual_cluster.live.scripts import (
    LATENCY_S,
    LAUNCH_S,
    ScriptedPrices,
    collective,
    copy,
    gap,
    group,
    kernel,
    play,
    receive,
    send,
)
from trainscout.simulators.virtual_cluster.live.host import FORGET_EVERY
from trainscout.simulators.virtual_cluster.live.messages import AskElapsed, Sleep
from trainscout.simulators.virtual_cluster.live.report import step_times, updates_that_repeat
from trainscout.simulators.virtual_cluster.live.simulation import DeadlockError
from trainscout.simulators.virtual_cluster.live.tasks import Task
from trainscout.simulators.virtual_cluster.traces.events import (
    EventRecord,
    EventWait,
    Phase,
    Site,
    Synchronise,
    ValueRead,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.traces.rank_walk import Lane
from trainscout.simulators.virtual_cluster.walk.rendezvous import MismatchError

DEVICE = Synchronise("device")


def clocks(simulation):
    return {rank: host.clock.now_s for rank, host in simulation.hosts.items()}


def test_one_stream_runs_in_order_behind_the_host():
    simulation, releases = play({0: [kernel(1e-3), kernel(2e-3), DEVICE]})
    assert clocks(simulation)[0] == pytest.approx(LAUNCH_S + 3e-3)
    assert [release.rank for release in releases] == [0]


def test_a_slow_host_starves_the_device():
    script = [gap(1e-3), kernel(1e-4), gap(1e-3), kernel(1e-4), DEVICE]
    simulation, _ = play({0: script})
    assert clocks(simulation)[0] == pytest.approx(2e-3 + 2 * LAUNCH_S + 1e-4)


def test_two_streams_run_beside_each_other_until_an_event_orders_them():
    apart = [kernel(1e-3, 0), kernel(2e-3, 1), DEVICE]
    assert clocks(play({0: apart})[0])[0] == pytest.approx(2 * LAUNCH_S + 2e-3)
    ordered = [kernel(1e-3, 0), EventRecord(7, 0), EventWait(7, 1), kernel(2e-3, 1), DEVICE]
    assert clocks(play({0: ordered})[0])[0] == pytest.approx(LAUNCH_S + 3e-3)


def test_a_host_waits_for_a_stream_an_event_or_a_value_only():
    both = [kernel(1e-3, 0), EventRecord(7, 0), kernel(5e-3, 0), kernel(2e-3, 1)]
    waits = {
        2 * LAUNCH_S + 6e-3: None,
        3 * LAUNCH_S + 2e-3: Synchronise("stream", 1),
        LAUNCH_S + 1e-3: Synchronise("event", 7),
        LAUNCH_S + 6e-3: ValueRead("aten.item", 1.0, "invented", 0),
    }
    for expected, wait in waits.items():
        if wait is not None:
            assert clocks(play({0: [*both, wait]})[0])[0] == pytest.approx(expected)


def test_a_collective_starts_when_the_last_arrives_and_all_wait_for_it():
    size = 10**6
    scripts = {
        rank: [group(0, 1), kernel(busy), collective("0-1", 0, size), WorkWait(1000, 0), DEVICE]
        for rank, busy in enumerate((1e-3, 4e-3))
    }
    simulation, _ = play(scripts)
    expected = LAUNCH_S + 4e-3 + LATENCY_S + 1e-3
    assert clocks(simulation) == pytest.approx({0: expected, 1: expected})
    slices = [each for each in simulation.slices if each.name == "all_reduce"]
    assert [each.start_ps for each in slices] == pytest.approx([1e12 * (LAUNCH_S + 4e-3)] * 2)


def test_a_collective_runs_beside_kernels_until_its_wait():
    size = 10**6
    script = [
        group(0, 1),
        kernel(1e-3),
        collective("0-1", 0, size),
        kernel(5e-4),
        WorkWait(1000, 0),
        kernel(1e-3),
        DEVICE,
    ]
    simulation, _ = play({0: script, 1: script})
    expected = LAUNCH_S + 1e-3 + LATENCY_S + 1e-3 + 1e-3
    assert clocks(simulation) == pytest.approx({0: expected, 1: expected})


def test_kernels_and_transfers_slow_each_other_while_they_overlap():
    # 2 ms of kernel beside a transfer of 1 ms (and its latency) that both run at half speed.
    script = [group(0, 1), collective("0-1", 0, 10**6), kernel(2e-3), DEVICE]
    prices = ScriptedPrices(on_kernel=2.0, on_transfer=2.0)
    simulation, _ = play({0: script, 1: script}, prices=prices)
    transfer = LATENCY_S + 1e-3
    # Alone for one launch, then halved; the kernel does the rest at full speed afterwards.
    together = 2 * (transfer - LAUNCH_S)
    expected = 2 * LAUNCH_S + together + (2e-3 - together / 2)
    assert clocks(simulation)[0] == pytest.approx(expected)


@pytest.mark.parametrize(("beside", "factor"), [(kernel, 2.0), (copy, 1.0)])
def test_two_kernels_share_the_device_and_copies_to_the_host_do_not(beside, factor):
    script = [kernel(4e-3), beside(4e-3, 1), DEVICE]
    simulation, _ = play({0: script}, prices=ScriptedPrices(of_two=2.0))
    assert clocks(simulation)[0] == pytest.approx(factor * 4e-3, rel=1e-3)


def test_ping_pong():
    size, rounds = 10**6, 3
    ping, pong = [group(0, 1)], [group(0, 1)]
    for each in range(rounds):
        ping += [send("0-1", 1, each, size, work=2 * each), WorkWait(2 * each, 0)]
        ping += [receive("0-1", 1, each, size, work=2 * each + 1), WorkWait(2 * each + 1, 0)]
        pong += [receive("0-1", 0, each, size, work=2 * each), WorkWait(2 * each, 0)]
        pong += [send("0-1", 0, each, size, work=2 * each + 1), WorkWait(2 * each + 1, 0)]
    simulation, _ = play({0: [*ping, DEVICE], 1: [*pong, DEVICE]})
    expected = LAUNCH_S + 2 * rounds * (LATENCY_S + size / 1e9)
    assert clocks(simulation) == pytest.approx({0: expected, 1: expected})


def test_a_grouped_exchange_does_not_deadlock():
    def script(peer):
        name = "0-1"
        return [
            group(0, 1),
            send(name, peer, 0, 10**6, work=0, batch=0),
            receive(name, peer, 0, 10**6, work=1, batch=0),
            WorkWait(0, 0),
            WorkWait(1, 0),
            DEVICE,
        ]

    simulation, _ = play({0: script(1), 1: script(0)})
    expected = LAUNCH_S + LATENCY_S + 1e-3
    assert clocks(simulation) == pytest.approx({0: expected, 1: expected})


def test_a_pipeline_without_communication_cost_takes_fill_plus_work():
    stages, micro_batches, busy = 4, 6, 1e-2
    scripts = {}
    for stage in range(stages):
        script = [group(*range(stages), name="pp")]
        for micro in range(micro_batches):
            if stage:
                script += [receive("pp", stage - 1, micro, 0, work=2 * micro)]
                script += [WorkWait(2 * micro, 0)]
            script += [kernel(busy)]
            if stage < stages - 1:
                script += [send("pp", stage + 1, micro, 0, work=2 * micro + 1)]
        scripts[stage] = [*script, DEVICE]
    simulation, _ = play(scripts)
    last = max(clocks(simulation).values())
    ideal = (stages - 1 + micro_batches) * busy
    assert ideal < last < ideal + 2 * stages * micro_batches * (LAUNCH_S + LATENCY_S)


def test_elapsed_time_is_the_device_s():
    script = [
        EventRecord(1, 0, timing=True),
        kernel(3e-3),
        EventRecord(2, 0, timing=True),
        AskElapsed(1, 2),
    ]
    _, releases = play({0: script})
    (release,) = releases
    assert release.elapsed_ms == pytest.approx(3.0 + 1e3 * LAUNCH_S)


def test_sleep_passes_host_time_while_the_device_works():
    simulation, _ = play({0: [kernel(1e-3), Sleep(5e-3), DEVICE]})
    assert clocks(simulation)[0] == pytest.approx(LAUNCH_S + 5e-3)


def test_device_time_is_booked_by_step():
    size = 10**6
    step = [kernel(1e-3), collective("0-1", 0, size), WorkWait(1000, 0), kernel(2e-3)]
    first = [group(0, 1), Phase("forward", 0), *step]
    late = [group(0, 1), Phase("forward", 0), kernel(4e-3), *step[1:]]
    after = [Phase("optimizer", 0), Phase("forward", 1), kernel(1e-3)]
    simulation, _ = play({0: [*first, *after], 1: late})
    before, zero, one = simulation.hosts[0].steps
    # What is evaluated after the last step is none.
    assert (zero.trains, one.trains) == (True, False)
    assert before.kernels_ps == 0
    assert zero.kernels_ps == pytest.approx(1e12 * (3e-3))
    assert zero.transfers_ps == pytest.approx(1e12 * (LATENCY_S + 1e-3))
    assert zero.peers_ps == pytest.approx(1e12 * (3e-3))
    assert zero.end_ps == pytest.approx(1e12 * (LAUNCH_S + 4e-3 + LATENCY_S + 1e-3 + 2e-3))
    assert one.end_ps - zero.end_ps == pytest.approx(1e12 * (1e-3))


def test_what_follows_the_second_optimizer_of_the_last_step_is_no_step():
    def step(number):
        phases = ["forward", "optimizer", "other", "optimizer", "other"]
        return [event for name in phases for event in (Phase(name, number), kernel(1e-3))]

    simulation, _ = play({0: [*step(0), *step(1), Phase("other", 1), kernel(7e-3)]})
    _, last = step_times(simulation.hosts[0].steps)
    assert last.seconds == pytest.approx(5e-3)  # From one first optimizer to the next.


def test_nobody_is_released_before_the_slowest_host_has_passed():
    """Rank 0 could go on at 1 ms; rank 1, known up to 0.5 and 1 ms, might launch before that."""
    seen = []

    def look(simulation):
        hosts = simulation.hosts
        seen.append((hosts[1].clock.now_s, hosts[0].wait is not None))

    scripts = {0: [kernel(1e-3), DEVICE], 1: [gap(5e-4), gap(5e-4), gap(5e-4)]}
    play(scripts, choose=lambda ranks: (ranks[0], 2 if ranks[0] == 0 else 1), after=look)
    assert seen[:4] == [
        (0.0, True),
        (pytest.approx(5e-4), True),
        (pytest.approx(1e-3), True),
        (pytest.approx(1.5e-3), False),
    ]


def test_history_that_nothing_can_reach_is_forgotten():
    """Streams, events and works of 20,000 launches: tasks that have run do not stay."""
    script, works = [group(0, 1)], 5000
    for number in range(works):
        script += [kernel(1e-5), EventRecord(number, 0), EventWait(number, 1)]
        script += [collective("0-1", number, 1000, stream=1, work=number), WorkWait(number, 0)]
        script += [kernel(1e-5, 1), Synchronise("stream", 0)] if number % 10 == 0 else []
    most = 0

    def look(simulation):
        nonlocal most
        if simulation.now_ps > 1e10:
            most = max(most, sum(isinstance(each, Task) for each in gc.get_objects()))

    calls = itertools.count()
    play(
        {0: script, 1: script},
        choose=lambda ranks: (ranks[0], 50),
        after=lambda now: look(now) if next(calls) % 500 == 0 else None,
    )
    # Two ranks' worth of what is kept between two looks.
    assert 0 < most < 2.5 * FORGET_EVERY


def test_ranks_that_wait_for_each_other_are_told_with_their_places():
    here = Site(3, "train.py", 12, "step")
    scripts = {
        0: [here, group(0, 1), receive("0-1", 1, 0, 8, work=0), Synchronise("device", site=3)],
        1: [here, group(0, 1), receive("0-1", 0, 0, 8, work=0), Synchronise("device", site=3)],
    }
    with pytest.raises(DeadlockError) as caught:
        play(scripts)
    text = str(caught.value)
    assert "rank 0 waits" in text
    assert "rank 1 waits" in text
    assert "train.py:12 in step" in text
    assert "held up by recv" in text


def test_sends_in_front_of_each_others_receives_are_told():
    scripts = {
        rank: [
            *(group(0, 1), send("0-1", 1 - rank, 0, 8, work=0)),
            *(receive("0-1", 1 - rank, 0, 8, work=1), WorkWait(1, 0), kernel(1e-3), DEVICE),
        ]
        for rank in range(2)
    }
    with pytest.raises(DeadlockError) as caught:
        play(scripts)
    for rank in range(2):
        begun = f"rank {rank} has begun send; it waits behind other work of rank {1 - rank}"
        assert begun in str(caught.value)


def test_a_rank_that_ended_leaves_its_peers_waiting():
    scripts = {0: [group(0, 1), collective("0-1", 0, 8), DEVICE], 1: [group(0, 1)]}
    with pytest.raises(DeadlockError, match=r"not yet there: 1(.|\n)*have ended: 1"):
        play(scripts)


def test_different_collectives_under_one_number_are_refused():
    scripts = {
        0: [group(0, 1), collective("0-1", 0, 8)],
        1: [group(0, 1), collective("0-1", 0, 8, kind="all_gather")],
    }
    with pytest.raises(MismatchError, match=r"rank 0 launched all_reduce .* but rank 1"):
        play(scripts)


def test_streams_that_wait_for_each_other_by_turns_wait_for_no_task_twice():
    script = [kernel(1e-3), kernel(1e-3, 1)]
    for event in range(20):
        script += [EventRecord(event, event % 2), EventWait(event, (event + 1) % 2)]
    simulation, _ = play({0: [*script, kernel(1e-3), DEVICE]})
    assert clocks(simulation)[0] == pytest.approx(2e-3, rel=0.2)
    # More of them by half with each turn else, until live stood still.
    assert Lane("stream", [1], [2, 1, 2]).frontier == [1, 2]


@pytest.mark.parametrize(
    ("seconds", "every"),
    [
        # Sampled text before the first of two updates, weights averaged after every third.
        ((9, 5, 20, 5, 20.1, 5), 2),
        ((9, 1, 5, 1, 1, 5, 1), 3),
        ((5, 1, 1, 5, 1, 1, 5), 3),
        ((9, 2, 2, 2.01), 1),
        ((9, 1, 5, 1), 0),
        ((9, 1, 1, 5), 0),
        ((9, 2), 0),
        ((), 0),
    ],
)
def test_updates_that_repeat_a_pattern_are_found(seconds: tuple[float, ...], every: int) -> None:
    assert updates_that_repeat(seconds) == every
