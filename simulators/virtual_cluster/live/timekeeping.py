"""Python's clocks read simulated time: installed before a script imports their names.

``time.monotonic`` stays real: threads and queues count their timeouts by it. So do other threads'
sleeps; the main thread's pass simulated time.
"""

from __future__ import annotations

import copyreg
import datetime
import importlib
import importlib.util
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from .clock import PICOSECONDS

if TYPE_CHECKING:
    from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder

    from .sink import LiveSink

_NANOSECONDS = 1_000_000_000
_REAL_SLEEP = time.sleep
_RealDatetime = datetime.datetime
# Compiled against the class they find in datetime when first imported, and broken by another.
_COMPILED_WITH_DATETIME = ("pandas",)


class RankTime:
    """A rank's simulated time, with what its script has spent since its last event."""

    def __init__(self, sink: LiveSink, recorder: Recorder, gap_factor: float) -> None:
        self._sink = sink
        self._recorder = recorder
        self._gap_factor = gap_factor

    def now_s(self) -> float:
        """Simulated seconds since the job began."""
        spent_s = self._gap_factor * self._recorder.script_cpu_s() if self._gap_factor else 0.0
        return self._sink.clock.now_s + spent_s

    def busy_s(self) -> float:
        """Those of them in which the host did not wait."""
        return self.now_s() - self._sink.clock.waited_ps / PICOSECONDS

    def sleep(self, seconds: float) -> None:
        """Pass simulated time."""
        self._sink.sleep(seconds)


class _Clocks:
    """The process's keeper; real time passes until there is one."""

    keeper: RankTime | None = None
    # What clocks showed when simulated time began.
    epoch_s = 0.0
    counter_s = 0.0


def install_clocks() -> None:
    """Replace the clocks; they go on to show real time until ``keep_time``."""
    real_time, real_counter, real_process = time.time, time.perf_counter, time.process_time

    def now_s() -> float:
        if _Clocks.keeper is None:
            return real_time()
        return _Clocks.epoch_s + _Clocks.keeper.now_s()

    def counter_s() -> float:
        if _Clocks.keeper is None:
            return real_counter()
        return _Clocks.counter_s + _Clocks.keeper.now_s()

    def process_s() -> float:
        return real_process() if _Clocks.keeper is None else _Clocks.keeper.busy_s()

    def sleep(seconds: float) -> None:
        main = threading.current_thread() is threading.main_thread()
        if _Clocks.keeper is None or not main or not seconds > 0:
            _REAL_SLEEP(seconds)
        else:
            _Clocks.keeper.sleep(seconds)

    replaced: dict[str, Any] = {
        "time": now_s,
        "time_ns": lambda: round(now_s() * _NANOSECONDS),
        "perf_counter": counter_s,
        "perf_counter_ns": lambda: round(counter_s() * _NANOSECONDS),
        "process_time": process_s,
        "process_time_ns": lambda: round(process_s() * _NANOSECONDS),
        "sleep": sleep,
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    for package in _COMPILED_WITH_DATETIME:
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)
    datetime.datetime = _SimulatedDatetime  # type: ignore[misc]
    # A value's own class is no longer found under its name, by which it would be pickled.
    copyreg.pickle(_RealDatetime, _reduce)


def keep_time(keeper: RankTime) -> None:
    """From now on simulated time passes, from what the clocks show at this moment.

    In processes that this one forks (a data loader's) it is real again.
    """
    _Clocks.epoch_s, _Clocks.counter_s = time.time(), time.perf_counter()
    _Clocks.keeper = keeper
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    _Clocks.keeper = None


def _reduce(value: datetime.datetime) -> tuple[Any, tuple[Any, ...]]:
    state: Any = value.__reduce__()[1]
    return _real, state


def _real(*args: Any) -> datetime.datetime:
    return _RealDatetime(*args)


class _DatetimeType(type):
    """Values of the real class, and of its children, count as values of the simulated one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _RealDatetime)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _RealDatetime)


class _SimulatedDatetime(_RealDatetime, metaclass=_DatetimeType):
    """``datetime.datetime`` whose now is simulated; it makes values of the real class."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return _RealDatetime(*args, **named)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _RealDatetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        moment = _RealDatetime.fromtimestamp(time.time(), datetime.UTC)
        return moment.replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()
