"""Streams and events: numbers, and what waits for what."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from trainscout.simulators.virtual_cluster.emulation import native
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.traces.events import EventRecord, EventWait, Synchronise

_CUDA_DEVICE_TYPE = 1


class EngineNotices:
    """Follows what torch's own engine records, waits for and synchronises, below Python.

    A future of a communication records an event when it is made; waiting for that event is
    waiting for the communication.
    """

    def __init__(self, state: RankState) -> None:
        self._state = state
        self._arrivals: dict[int, Any] = {}
        self.future_of: Any = None

    def __call__(self, notice: int, event: int, stream: int) -> None:
        state = self._state
        if notice == native.RECORD:
            if self.future_of is not None:
                self._arrivals[event] = self.future_of
                return
            state.order.record(event, stream)
            state.recorder.emit(EventRecord(event, stream))
        elif notice == native.BLOCK:
            arrival = self._arrivals.get(event)
            if arrival is not None:
                arrival.waited_on(stream)
                return
            state.order.wait(event, stream)
            state.recorder.emit(EventWait(event, stream))
        elif notice == native.RECORD_STREAM:
            state.memory.record_memory_stream(event, stream)
        elif notice == native.SYNCHRONISE_EVENT:
            synchronise_event(state, event)
        elif notice == native.SYNCHRONISE_STREAM:
            synchronise_stream(state, stream)
        else:
            synchronise_device(state)


def synchronise_event(state: RankState, event: int) -> None:
    """The host waits for an event."""
    state.order.host_wait_event(event)
    state.recorder.emit(Synchronise("event", event, state.recorder.sites.current()))


def synchronise_stream(state: RankState, stream: int) -> None:
    """The host waits for a stream."""
    state.order.host_wait_stream(stream)
    state.recorder.emit(Synchronise("stream", stream, state.recorder.sites.current()))


def synchronise_device(state: RankState) -> None:
    """The host waits for the device."""
    state.order.host_wait_device()
    state.recorder.emit(Synchronise("device", None, state.recorder.sites.current()))


class Stream(torch.Stream):
    """A CUDA stream of the emulated device."""

    state: ClassVar[RankState]

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _index(cls.state, device)
        number = cls.state.shim.new_stream(1 if priority < 0 else 0)
        return super().__new__(
            cls, stream_id=number, device_index=index, device_type=_CUDA_DEVICE_TYPE
        )

    @property
    def cuda_stream(self) -> int:
        """The stream's handle: its number."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """-1 for streams of the pool of high priority."""
        return -1 if self.stream_id > 32 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return (0, -5)

    def wait_event(self, event: Any) -> None:
        """Later work of this stream runs after the event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Later work of this stream runs after what the other was given so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Record an event (a new one by default) here."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether the stream is idle, as far as the host knows (``StreamOrder.asked_in_vain``)."""
        order, number = self.state.order, int(self.stream_id)
        if not order.host_waited(order.point(number)):
            if order.asked_in_vain(("stream", number)):
                return False
            self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait on the host for this stream."""
        with self.state.recorder:
            synchronise_stream(self.state, int(self.stream_id))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and (
            (self.stream_id, self.device_index) == (other.stream_id, other.device_index)
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream some other library made."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        if not 0 <= stream_ptr <= 64:
            cls.state.recorder.violation("unknown handle", f"no stream has handle {stream_ptr:#x}")
        index = _index(cls.state, device)
        return super().__new__(
            cls, stream_id=stream_ptr, device_index=index, device_type=_CUDA_DEVICE_TYPE
        )


class Event:
    """A CUDA event of the emulated device."""

    state: ClassVar[RankState]

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self.number = self.state.shim.new_event()

    @property
    def cuda_event(self) -> int:
        """The event's handle: its number."""
        return self.number

    event_id = cuda_event

    @property
    def device(self) -> torch.device:
        """The current device."""
        return torch.device("cuda", self.state.shim.device())

    def record(self, stream: Any = None) -> None:
        """Mark the place a stream has reached."""
        with self.state.recorder:
            number = self.state.shim.stream() if stream is None else int(stream.stream_id)
            self.state.order.record(self.number, number)
            self.state.recorder.emit(EventRecord(self.number, number, self.enable_timing))

    def wait(self, stream: Any = None) -> None:
        """Later work of a stream runs after this event's last record."""
        with self.state.recorder:
            number = self.state.shim.stream() if stream is None else int(stream.stream_id)
            # Waiting for an event never recorded waits for nothing, on a GPU too.
            if self.state.order.recorded(self.number):
                self.state.order.wait(self.number, number)
                self.state.recorder.emit(EventWait(self.number, number))

    def query(self) -> bool:
        """Whether it has happened, as far as the host knows (``StreamOrder.asked_in_vain``)."""
        order = self.state.order
        if not order.host_waited(order.event_point(self.number)):
            if order.asked_in_vain(("event", self.number)):
                return False
            self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait on the host for this event."""
        with self.state.recorder:
            if self.state.order.recorded(self.number):
                synchronise_event(self.state, self.number)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another.

        Raises:
            ValueError: without timing, or before both were recorded, as torch's.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        recorded = self.state.order.recorded
        if not (recorded(self.number) and recorded(end_event.number)):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return self.state.recorder.sink.elapsed_ms(self.number, end_event.number)

    def ipc_handle(self) -> bytes:
        """A handle for other processes (there are none)."""
        return self.number.to_bytes(64, "little")

    def __del__(self) -> None:
        self.state.order.forget(self.number)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.number:#x}>"


class AnyEvent(Event):
    """``torch.Event``: of whatever accelerator there is, by its name."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        super().__init__(**options)


def stream_classes(state: RankState) -> tuple[type, type, type]:
    """``torch.cuda.Stream``, ``Event`` and ``ExternalStream``, of the rank of this process."""
    Stream.state = Event.state = state
    return Stream, Event, ExternalStream


def _index(state: RankState, device: Any) -> int:
    if isinstance(device, int):
        return device if device >= 0 else state.shim.device()
    if device is None:
        return state.shim.device()
    index = torch.device(device).index
    return state.shim.device() if index is None else index
