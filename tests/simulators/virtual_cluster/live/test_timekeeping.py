"""Python's clocks, in a process of their own: they are replaced for good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

SCRIPT = """
import copy, pickle, threading
import time as real
monotonic = real.monotonic
from trainscout.simulators.virtual_cluster.live.timekeeping import install_clocks, keep_time
before = real.time()
install_clocks()

# What a script does first: it takes names.
import datetime, time
from datetime import datetime as Datetime
from time import monotonic as taken_monotonic, perf_counter, process_time, sleep, time_ns
assert taken_monotonic is monotonic
assert abs(time.time() - before) < 5

class Keeper:
    now, busy = 0.0, 0.0
    def now_s(self): return self.now
    def busy_s(self): return self.busy
    def sleep(self, seconds): self.now += seconds

keeper = Keeper()
keep_time(keeper)
begun, counted, moment = time_ns(), perf_counter(), Datetime.now()
assert abs(begun / 1e9 - before) < 5
assert (perf_counter(), time_ns()) == (counted, begun)
keeper.now, keeper.busy = 7200.0, 0.25
assert abs(time_ns() - begun - 7200 * 10**9) <= 1000
assert abs(perf_counter() - counted - 7200) < 1e-6
assert process_time() == 0.25
assert abs((Datetime.now() - moment).total_seconds() - 7200) < 1e-3
assert abs((datetime.datetime.today() - moment).total_seconds() - 7200) < 1e-3
aware = Datetime.now(datetime.timezone.utc)
assert abs((Datetime.utcnow() - aware.replace(tzinfo=None)).total_seconds()) < 1e-3

# Sleep passes simulated time, and no real time; in other threads it is real.
start = monotonic()
sleep(3600)
assert keeper.now == 10800.0
thread = threading.Thread(target=sleep, args=(0.01,))
thread.start(); thread.join()
assert keeper.now == 10800.0
assert monotonic() - start < 60

# The replaced class is still one of dates.
assert isinstance(moment, Datetime) and isinstance(moment, datetime.date)
assert issubclass(type(moment), Datetime)
assert Datetime(2024, 2, 29).year == 2024 and Datetime.fromisoformat("2024-02-29").month == 2
assert Datetime.strptime("2024", "%Y") == Datetime(2024, 1, 1)
assert pickle.loads(pickle.dumps(aware)) == aware and copy.deepcopy(moment) == moment
print("fine")
"""


def test_clocks_read_simulated_time():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.strip() == "fine", done.stderr
