"""Times do not depend on the order in which ranks' messages come: to the last bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.live.scripts import (
    ScriptedPrices,
    collective,
    gap,
    group,
    kernel,
    play,
    receive,
    send,
)
from trainscout.simulators.virtual_cluster.live.messages import AskElapsed, Sleep
from trainscout.simulators.virtual_cluster.traces.events import (
    EventRecord,
    EventWait,
    Phase,
    Synchronise,
    WorkWait,
)

RANKS = 4
STREAMS = st.integers(0, 2)
# Few lengths, so that things happen at equal times, and one that shares no factor with them.
SECONDS = st.sampled_from([1e-5, 2e-5, 1e-4, 1e-3, 3.7e-4])
SIZES = st.sampled_from([10**4, 10**5, 10**6, 333_333])
PAIR = st.permutations(range(RANKS)).map(lambda ranks: ranks[:2])


@st.composite
def jobs(draw):
    """Scripts of ranks that could really run: drawn in one global order, so none can deadlock."""
    scripts = {rank: [group(*range(RANKS), name="world")] for rank in range(RANKS)}
    counts: dict[object, int] = {}

    def number(*what):
        counts[what] = counts.get(what, -1) + 1
        return counts[what]

    for _ in range(draw(st.integers(5, 40))):
        what = draw(st.sampled_from(ACTIONS))
        rank = draw(st.integers(0, RANKS - 1))
        script = scripts[rank]
        if what == "kernel":
            script.append(kernel(draw(SECONDS), draw(STREAMS)))
        elif what == "gap":
            script.append(gap(draw(SECONDS)))
        elif what == "sleep":
            script.append(Sleep(draw(SECONDS)))
        elif what == "synchronise":
            script.append(Synchronise(draw(st.sampled_from(["device", "stream"])), 0))
        elif what == "order":
            event = number("event", rank)
            script += [EventRecord(event, draw(STREAMS)), EventWait(event, draw(STREAMS))]
        elif what == "time":
            first, last = 10_000 + number("mark", rank), 10_000 + number("mark", rank)
            script += [EventRecord(first, 0, timing=True), kernel(draw(SECONDS))]
            script += [EventRecord(last, 0, timing=True), AskElapsed(first, last)]
        elif what == "step":
            script.append(Phase("forward", number("step", rank)))
        elif what == "pair":
            pair, size, stream = draw(PAIR), draw(SIZES), draw(STREAMS)
            sequence = number("pair", *pair)
            for me, transfer, peer in ((pair[0], send, pair[1]), (pair[1], receive, pair[0])):
                work = number("work", me)
                sent = transfer("world", peer, sequence, size, work=work, stream=stream)
                scripts[me] += [sent, WorkWait(work, stream, draw(st.booleans()))]
        else:
            members = draw(st.sets(st.integers(0, RANKS - 1), min_size=2))
            name, size = "-".join(map(str, sorted(members))), draw(SIZES)
            sequence, stream = number("collective", name), draw(STREAMS)
            for me in members:
                if sequence == 0:
                    scripts[me].append(group(*sorted(members), name=name))
                work = number("work", me)
                launched = collective(name, sequence, size, stream=stream, work=work)
                scripts[me] += [launched, WorkWait(work, draw(STREAMS), draw(st.booleans()))]
    return scripts


ACTIONS = ("kernel", "gap", "sleep", "synchronise", "order", "time", "step", "pair", "group")


def outcome(played):
    """Everything a job's times are, exactly; the order of releases across ranks is not."""
    simulation, releases = played
    by_rank = {
        rank: [
            (release.now_ps, release.elapsed_ms) for release in releases if release.rank == rank
        ]
        for rank in simulation.hosts
    }
    steps = {
        rank: [
            (
                step.number,
                step.start_ps,
                step.end_ps,
                step.kernels_ps,
                step.transfers_ps,
                step.peers_ps,
            )
            for step in host.steps
        ]
        for rank, host in simulation.hosts.items()
    }
    ran = [
        (each.rank, each.lane, each.start_ps, each.end_ps, each.name) for each in simulation.slices
    ]
    return by_rank, steps, sorted(ran)


@given(jobs(), st.randoms(use_true_random=False), st.sampled_from([1.0, 1.3]))
def test_white_box_times_are_those_of_any_other_interleaving(scripts, random, slowdown):
    def at_random(ranks):
        return random.choice(list(ranks)), random.randint(1, 6)

    def all_at_once(ranks):
        return ranks[-1], 1000

    prices = ScriptedPrices(slowdown, slowdown)
    expected = outcome(play(scripts, prices=prices))
    assert outcome(play(scripts, prices=prices, choose=at_random)) == expected
    assert outcome(play(scripts, prices=prices, choose=all_at_once)) == expected
