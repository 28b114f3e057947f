"""Processes, turns and endings, with ranks that need no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.live.fake_ranks import ROUNDS
from tests.simulators.virtual_cluster.live.scripts import LATENCY_S, LAUNCH_S, ScriptedPrices
from trainscout.simulators.predictor.io.command_line import FAILURE, IMPOSSIBLE_LAUNCHES
from trainscout.simulators.virtual_cluster.live import server
from trainscout.simulators.virtual_cluster.live.network import WhiteBoxNetwork
from trainscout.simulators.virtual_cluster.live.representation import Representation
from trainscout.simulators.virtual_cluster.live.server import LiveError, LiveServer
from trainscout.simulators.virtual_cluster.live.simulation import Simulation
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches

ROOT = Path(__file__).parents[4]


class Run:
    """A live run of fake ranks, and everything that was seen of it."""

    def __init__(self, behaviour: str, ranks: int = 3, cores: int = 2, timeout_s: float = 30.0):
        self.lines: list[tuple[int, str]] = []
        self.process: subprocess.Popen[str] | None = None
        who = Representation.by_neighbours(ranks, range(ranks))
        self.simulation = Simulation(
            who, ScriptedPrices(), WhiteBoxNetwork(), HostCost(LAUNCH_S), Launches
        )

        def start(address):
            command = [sys.executable, "-m", "tests.simulators.virtual_cluster.live.fake_ranks"]
            self.process = subprocess.Popen(
                [*command, address, behaviour, str(ranks)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
            return self.process

        self.server = LiveServer(
            self.simulation,
            start,
            cores=cores,
            timeout_s=timeout_s,
            show=lambda rank, line: self.lines.append((rank, line)),
        )

    def run(self):
        return self.server.run()

    def nobody_is_left(self) -> bool:
        for _ in range(50):
            listed = subprocess.run(
                ["ps", "-o", "stat=", "-g", str(self.process.pid)],
                capture_output=True,
                text=True,
                check=False,
            )
            if not [state for state in listed.stdout.split() if not state.startswith("Z")]:
                return True
            time.sleep(0.1)
        return False


def ended(behaviour: str, why: str, **settings) -> tuple[Run, LiveError]:
    """A run that ends with an error, which leaves no process."""
    run = Run(behaviour, **settings)
    with pytest.raises(LiveError, match=why) as caught:
        run.run()
    assert run.nobody_is_left()
    return run, caught.value


@pytest.mark.parametrize("cores", [1, 3])
def test_ranks_print_simulated_times_whatever_the_number_of_cores(cores):
    run = Run("rounds", cores=cores)
    measured = run.run()
    # The slowest host sets the pace: 3 ms of work, a launch, then 1 MB at 1 GB/s.
    period = 3e-3 + LAUNCH_S + LATENCY_S + 1e-3
    expected = sorted(
        (rank, f"round {number} at {period * (number + 1):.9f}")
        for rank in range(3)
        for number in range(ROUNDS)
    )
    assert sorted(run.lines) == expected
    assert measured.unknown[2].where == "fake.py:9"
    assert run.simulation.finished


def test_a_rank_that_waits_for_anothers_file_does_not_keep_it_from_its_turn(monkeypatch):
    monkeypatch.setattr(server, "_CROWD_S", 0.2)
    run = Run("file", cores=1)
    run.run()
    assert run.simulation.finished


def test_sleeping_ranks_wake_in_order_of_simulated_time():
    run = Run("sleep")
    began = time.monotonic()
    run.run()
    awake = [rank for rank, line in run.lines if line.startswith("awake")]
    assert awake == [2, 1, 0]
    assert time.monotonic() - began < 20


def test_a_deadlock_names_every_wait_and_ends_all():
    _, error = ended("deadlock", "not yet there: 1")
    assert error.code == IMPOSSIBLE_LAUNCHES
    for words in ("rank 0 waits", "rank 2 waits", "fake.py:7 in main"):
        assert words in str(error)


def test_threads_collect_while_hosts_wait_and_may_yet_end_a_wait():
    run = Run("threads", cores=1)
    run.run()
    printed = sorted(line for line in run.lines if not line[1].startswith("round"))
    late = [(rank, "late ['came late']") for rank in range(3)]
    assert printed == sorted(late + [(rank, "thread ['came soon']") for rank in (0, 1)])
    assert run.simulation.finished


@pytest.mark.parametrize(("code", "shown"), [(2, 2), (3, 3), (7, 1)])
def test_a_rank_that_fails_ends_all_with_its_code(code: int, shown: int):
    run, error = ended(f"fail {code}", f"rank 1 ended with code {code}")
    assert error.code == shown
    assert (1, "rank 1 breaks") in run.lines


def test_ranks_that_wait_long_are_named_with_what_they_wait_for(monkeypatch, capfd):
    monkeypatch.setattr(server, "WAIT_S", 1.0)
    ended("hang", "no message", timeout_s=6.0)
    told = capfd.readouterr().err
    assert re.findall("live: no rank has gone on for (.) s:", told) == ["1", "2", "4"]
    assert "ranks that run: 1\n  rank 0 waits since 0.001" in told
    assert "device synchronise at fake.py:7 in main, held up by all_reduce" in told
    # Ranks 0 and 2 launch at the same time: the one whose message came first is named.
    launched = r"rank [02] launched all_reduce number 0 on 'world'; not yet there: 1\n"
    assert re.search(launched, told)


def test_silence_ends_all():
    _, error = ended("hang", r"no message for \d+ s from ranks 1", timeout_s=2.0)
    assert error.code == FAILURE


def test_a_deadlock_beside_threads_that_do_nothing_is_one_at_the_timeout():
    _, error = ended("idle thread", "of which a thread had its chance", timeout_s=3.0)
    assert error.code == IMPOSSIBLE_LAUNCHES
    assert "not yet there: 1" in str(error)


def test_a_host_that_waits_for_its_thread_is_passed_by():
    run = Run("behind", timeout_s=5.0)
    run.run()
    # Rank 1 sleeps for a second, and rank 0 goes on at that time: 2 ms of work are the longest.
    first_s = 1.0 + 2e-3 + LAUNCH_S + LATENCY_S + 1e-3
    assert (0, f"round 0 at {first_s:.9f}") in run.lines


def test_what_is_no_frame_ends_all():
    ended("nonsense", "a frame of 1061109567 bytes")


def test_an_interrupt_ends_all():
    code = (
        "import os, signal, sys, threading\n"
        "from tests.simulators.virtual_cluster.live.test_server import Run\n"
        "run = Run('hang')\n"
        "threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    run.run()\n"
        "except KeyboardInterrupt:\n    sys.exit(0 if run.nobody_is_left() else 9)\n"
        "sys.exit(8)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60)
    assert done.returncode == 0
