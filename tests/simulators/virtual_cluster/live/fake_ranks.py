"""Ranks without torch: processes that speak as the real ones do.

python -m tests.simulators.virtual_cluster.live.fake_ranks ADDRESS BEHAVIOUR RANKS
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

from tests.simulators.virtual_cluster.live.scripts import LAUNCH_S
from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown
from trainscout.simulators.virtual_cluster.live.clock import HostClock
from trainscout.simulators.virtual_cluster.live.messages import (
    Figures,
    Hello,
    connect,
)
from trainscout.simulators.virtual_cluster.live.sink import LiveSink
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches

ROUNDS = 3


def run(address: str, behaviour: str, rank: int, ranks: int) -> int:
    connection = connect(address, Hello(rank, "events"))
    output = connect(address, Hello(rank, "output"))
    os.dup2(output.fileno(), 1)
    clock = HostClock(HostCost(LAUNCH_S), Launches())
    sink = LiveSink(connection, clock, partial(connect, address, Hello(rank, "thread")))
    sink.wait_for_turn()
    sink.emit(events.Site(0, "fake.py", 7, "main"))
    sink.emit(events.Group("world", "", tuple(range(ranks))))
    if behaviour.startswith("fail") and rank == 1:
        print("rank 1 breaks", flush=True)
        return int(behaviour[-1])
    if behaviour == "hang" and rank == 1:
        time.sleep(60)
    if behaviour == "nonsense" and rank == 1:
        connection.sendall(b"?" * 100)
        time.sleep(60)
    if behaviour == "idle thread":
        threading.Thread(target=idle, args=(sink, rank), daemon=True).start()
    if behaviour == "threads":
        thread = threading.Thread(target=exchange, args=(sink, rank))
        thread.start()
        if rank == 0:
            # It collects by now, before its host waits.
            time.sleep(0.3)
        if rank == 1:
            thread.join()
    if behaviour == "behind" and rank == 0:
        thread = threading.Thread(target=sink.collect, args=(["later"], [1]))
        thread.start()
        thread.join()
    if behaviour == "behind" and rank == 1:
        sink.sleep(1.0)
        sink.publish("later", "")
    flag = Path(f"{address}.flag")
    while behaviour == "file" and rank == 0 and not flag.exists():
        time.sleep(0.01)
    if behaviour == "file" and rank == 1:
        flag.touch()
    for number in range(ROUNDS):
        if behaviour in ("deadlock", "idle thread") and rank == 1:
            break
        sink.emit(events.HostGap(1e-3 * (rank + 1)))
        sink.emit(
            events.Collective("all_reduce", "world", number, 10**6, 10**6, "float32", 0, number)
        )
        sink.emit(events.WorkWait(number, 0))
        sink.emit(events.Synchronise("device", site=0))
        print(f"round {number} at {sink.clock.now_s:.9f}", flush=True)
    if behaviour == "threads":
        if rank == 0:
            thread.join()
        print(f"late {sink.collect(['late'], [2])}", flush=True)
    if behaviour == "sleep":
        sink.sleep(1.0 - rank * 0.25)
        print(f"awake at {sink.clock.now_s:.9f}", flush=True)
    unknown = (Unknown("item", 2, "1.0", "fake.py:9"),)
    sink.close()
    sink.finish(Figures(0, 0.1, 5, 6, 8, 0), unknown)
    return 0


def idle(sink: LiveSink, rank: int) -> None:
    """A thread that was needed once and waits for work."""
    sink.publish(f"of {rank}", "")
    time.sleep(60)


def exchange(sink: LiveSink, rank: int) -> None:
    """A thread of rank 2 gives others something while its host waits, and more while all do."""
    if rank < 2:
        print(f"thread {sink.collect(['soon'], [2])}", flush=True)
        return
    for key in ("soon", "late"):
        time.sleep(1)
        sink.publish(key, f"came {key}")


def main(address: str, behaviour: str, ranks: int) -> None:
    children = {}
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = run(address, behaviour, rank, ranks)
            except (EOFError, OSError):
                pass
            finally:
                os._exit(code)
        children[child] = rank
    while children:
        child, status = os.wait()
        print(children.pop(child), os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
