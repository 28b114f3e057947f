"""The device's memory: which storages live, what the caching allocator makes of them.

A storage is followed from the operation that makes it to the moment its last tensor is gone, by a
weak reference: torch keeps one Python object for the life of a storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.virtual_cluster.allocator.allocator import Allocator, OutOfMemory
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.allocator.segments import Block
from trainscout.simulators.virtual_cluster.traces import events

from .recorder import Recorder
from .stream_order import Extent, StreamKey, StreamOrder, StreamUses, extent_of

if TYPE_CHECKING:
    import torch


class DeviceStorage:
    """A live storage: its number in the trace, its memory, and who used it last."""

    __slots__ = (
        *("block", "bytes", "fed", "former", "gone", "home", "key", "kept_for", "made_of"),
        *("memory", "number", "recorded", "reference", "region", "sources", "uses"),
    )

    def __init__(self, number: int, size: int, home: int, block: Block | None) -> None:
        self.number = number
        self.bytes = size
        # The stream it was allocated on: its memory is reused in that stream's order.
        self.home = home
        self.block = block
        self.uses = StreamUses()
        self.recorded: set[int] = set()
        self.reference: object = None
        # Uses of the same memory by storages freed before, that nothing was ordered after then.
        self.former: dict[StreamKey, int] | None = None
        # How torch names it while it lives: the storage, and its memory.
        self.key = self.memory = 0
        # The compiled region that makes it, and what it is computed again of as long as it has no
        # memory; how many such storages need this one, and whether none but they do.
        self.region = 0
        self.sources: dict[DeviceStorage, None] = {}
        self.kept_for = 0
        self.gone = False
        # What without memory it was made of, and whether a kernel of its own has used what is made
        # of it: who reads it after that kernel, finds it in memory.
        self.made_of: set[DeviceStorage] = set()
        self.fed = False


Parts = list[tuple[DeviceStorage, Extent]]


class DeviceMemory:
    """Storages on the emulated device.

    Args:
        recorder: takes the events.
        order: what runs before what, to see memory freed while another stream still uses it.
        capacity_bytes: of the device.
        outside_bytes: of the device, never the framework's: context and loaded kernels.
        settings: tells the caching allocator's, when it is first used: scripts set its variable.
        memory_of: torch's number for a storage's memory, which its engine names it by.
    """

    def __init__(
        self,
        recorder: Recorder,
        order: StreamOrder,
        capacity_bytes: int,
        outside_bytes: int,
        settings: Callable[[], AllocatorSettings],
        memory_of: Callable[[int], int],
    ) -> None:
        self._capacity_bytes, self._outside_bytes = capacity_bytes, outside_bytes
        self._settings = settings
        self._allocator: Allocator | None = None
        self._recorder = recorder
        self._order = order
        self._memory_of = memory_of
        # Storages of compiled regions that have no memory; how deep regions nest, and the
        # outermost: a number, negative in backward, 0 outside of any.
        self._virtual: dict[int, DeviceStorage] = {}
        self._region_depth = self._region = self._regions = 0
        # Depth and region that were left for a while.
        self._stepped_out = (0, 0)
        self._peaks = (0, 0)
        self._live: dict[int, DeviceStorage] = {}
        self._by_memory: dict[int, DeviceStorage] = {}
        # Freed memory another stream may still use: where, how long, whose, and the uses.
        self._loose: list[tuple[int, int, int, dict[StreamKey, int]]] = []
        self._next = 0
        # Whether what was launched so far may not be over: training has not begun.
        self._sets_up = True

    @property
    def allocator(self) -> Allocator:
        """The caching allocator, which begins when it is first used.

        Raises:
            InputError: for settings torch does not know.
        """
        if self._allocator is None:
            self._allocator = self._new_allocator()
        return self._allocator

    def _new_allocator(self) -> Allocator:
        return Allocator(self._capacity_bytes, self._settings(), self._outside_bytes)

    def find(self, storage: torch.UntypedStorage) -> DeviceStorage | None:
        """What is known of a storage, None when it is not the device's."""
        return self._live.get(storage._cdata)

    def track(self, storage: torch.UntypedStorage, stream: int) -> DeviceStorage:
        """Follow a storage; a new one is allocated on ``stream``.

        Raises:
            torch.cuda.OutOfMemoryError: when the device has no room for it.
        """
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            return known
        size = storage.nbytes()
        block = None if self._region_depth else self._allocate(size, stream)
        made = DeviceStorage(self._next, size, stream, block)
        self._next += 1
        self._live[key] = made
        made.key = key
        made.memory = self._memory_of(key)
        self._by_memory[made.memory] = made
        if self._loose and block is not None:
            made.former = self._former_uses(block)
        if self._region_depth:
            self._virtual[key] = made
            made.region = self._region
        self._recorder.emit(events.Alloc(made.number, 0 if made.region else size, stream))
        made.reference = weakref.ref(storage, lambda _: self._free(key))
        return made

    def resized(self, storage: torch.UntypedStorage, stream: int) -> None:
        """A storage has another size now: memory is given back or taken anew.

        Raises:
            torch.cuda.OutOfMemoryError: when the device has no room for it.
        """
        known = self._live.get(storage._cdata)
        if known is None:
            return
        size = storage.nbytes()
        if size == known.bytes:
            return
        self._forget(known)
        if known.block is not None:
            self._note_loose(known)
            self.allocator.free(known.block)
            known.block = None
        known.block = self._allocate(size, stream)
        known.bytes, known.home = size, stream
        known.uses.clear()
        known.recorded.clear()
        self._recorder.emit(events.Resize(known.number, size))

    def record_stream(self, storage: torch.UntypedStorage, stream: int) -> None:
        """The storage is in use on another stream."""
        known = self._live.get(storage._cdata)
        if known is not None:
            self._record(known, stream)

    def record_memory_stream(self, memory: int, stream: int) -> None:
        """As ``record_stream``, for the storage torch's engine names by its memory."""
        known = self._by_memory.get(memory)
        if known is not None:
            self._record(known, stream)

    def _record(self, known: DeviceStorage, stream: int) -> None:
        # On its own stream, or twice, it changes nothing.
        if stream == known.home or stream in known.recorded:
            return
        known.recorded.add(stream)
        self._recorder.emit(events.RecordStream(known.number, stream))

    def enter_region(self, backward: bool = False) -> None:
        """A compiled region begins.

        What fused kernels make takes no memory. What backward wants of it they compute again, as
        ``torch.compile`` has them do, from what products and the like left in memory, which stays
        there as long.
        """
        if not self._region_depth:
            self._regions += 1
            self._region = -self._regions if backward else self._regions
        self._region_depth += 1

    def step_aside(self, aside: bool) -> None:
        """What runs until the next call is no part of the region, which goes on afterwards."""
        inside = self._region_depth, self._region
        self._region_depth, self._region = self._stepped_out
        self._stepped_out = inside if aside else (0, 0)

    def materialise(self, parts: Parts) -> None:
        """A kernel of its own uses these: they are in memory, region or not.

        Raises:
            torch.cuda.OutOfMemoryError: when the device has no room for them.
        """
        if self._virtual:
            for known, _ in parts:
                if known.key in self._virtual:
                    for each in known.made_of:
                        each.fed = True
                    self._allocate_kept(known)

    def _allocate_kept(self, made: DeviceStorage) -> None:
        self._forget(made)
        made.block = self._allocate(made.bytes, made.home)
        self._recorder.emit(events.Resize(made.number, made.bytes))
        if self._loose and made.block is not None:
            made.former = self._former_uses(made.block)

    def _forget(self, made: DeviceStorage) -> None:
        """It need not be computed again."""
        self._virtual.pop(made.key, None)
        for source in made.sources:
            source.kept_for -= 1
            if source.gone and not source.kept_for:
                self._release(source)
        made.sources.clear()
        made.made_of.clear()

    def _fused(self, reads: Parts, writes: Parts) -> None:
        """A kernel reads and writes, of which some have no memory."""
        for known, _ in (*reads, *writes):
            made, now = known.region, self._region
            if known.key not in self._virtual:
                continue
            if known.fed and now > 0:
                # It lies in memory while another kernel runs: what is made of it begins there.
                for each in self._virtual.values():
                    if known in each.made_of:
                        for source in known.sources.keys() & each.sources:
                            del each.sources[source]
                            source.kept_for -= 1
                        each.sources[known] = None
                        known.kept_for += 1
                self._allocate_kept(known)
            elif made != now and not (made > 0 > now):
                # Another region's, or nobody's: what one hands to another is in memory.
                self._allocate_kept(known)
        for known, _ in writes:
            if known.key not in self._virtual:
                continue
            for each, _ in reads:
                if each.key in self._virtual and each is not known:
                    known.made_of |= {each, *each.made_of}
                for source in each.sources if each.key in self._virtual else (each,):
                    if source is not known and source not in known.sources:
                        source.kept_for += 1
                        known.sources[source] = None

    def leave_region(self, returned: Iterable[Any] = ()) -> None:
        """A compiled region ends: what it returns and what backward keeps takes memory now.

        Raises:
            torch.cuda.OutOfMemoryError: when the device has no room for it.
        """
        self._region_depth -= 1
        if self._region_depth:
            return
        if self._region < 0:
            kept = [each for each in self._virtual.values() if each.region == self._region]
        else:
            parts = [self.part(each) for each in returned if isinstance(each, FakeTensor)]
            kept = [part[0] for part in parts if part is not None]
        self._region = 0
        for made in kept:
            if made.key in self._virtual:
                self._allocate_kept(made)

    def empty_cache(self) -> None:
        """Give cached segments back to the device."""
        self.allocator.empty_cache()
        self._recorder.emit(events.EmptyCache())

    def reset_peaks(self) -> None:
        """Let the script's peaks begin anew; the rank's own are kept."""
        self._peaks = self.peaks()
        self.allocator.reset_peaks()

    def peaks(self) -> tuple[int, int]:
        """Highest bytes allocated and reserved, whatever the script reset."""
        allocated, reserved = self._peaks
        allocator = self.allocator
        return (
            max(allocated, allocator.peak_allocated_bytes),
            max(reserved, allocator.peak_reserved_bytes),
        )

    def restart(self) -> None:
        """A new trace begins: what still lives keeps its memory and gets new numbers."""
        allocator = self._allocator = self._new_allocator()
        self._peaks = (0, 0)
        self._sets_up = True
        self._loose.clear()
        self._virtual.clear()
        self._next = 0
        for known in self._live.values():
            known.number = self._next
            known.uses.clear()
            known.recorded.clear()
            known.former = None
            self._next += 1
            known.block = allocator.allocate(known.bytes, known.home) if known.bytes else None
            known.kept_for = 0
            known.sources.clear()
            self._recorder.emit(events.Alloc(known.number, known.bytes, known.home))

    def _allocate(self, size: int, stream: int) -> Block | None:
        if not size:
            return None
        try:
            return self.allocator.allocate(size, stream)
        except OutOfMemory as error:
            import torch

            message = error.message(torch.cuda.current_device())
        raise torch.cuda.OutOfMemoryError(message)

    def _free(self, key: int) -> None:
        known = self._live.pop(key, None)
        if known is None:
            return
        self._by_memory.pop(known.memory, None)
        known.gone = True
        self._forget(known)
        if not known.kept_for:
            self._release(known)

    def _release(self, known: DeviceStorage) -> None:
        if known.block is not None:
            self._note_loose(known)
            self.allocator.free(known.block)
        self._recorder.emit(events.Free(known.number))

    def _note_loose(self, known: DeviceStorage) -> None:
        """Remember uses on other streams that the memory's own stream is not ordered after.

        Freeing is no harm: whoever uses the memory next must be ordered after them.
        """
        if known.uses.only_by(known.home):
            return
        uses: dict[StreamKey, int] = {}
        for stream, number in known.uses.last().items():
            if stream == known.home or isinstance(stream, str) or stream in known.recorded:
                continue
            if not self._order.ordered(known.home, stream, number):
                uses[stream] = number
        block = known.block
        if uses and block is not None:
            self._loose.append((block.address, block.address + block.bytes, known.home, uses))

    def _former_uses(self, block: Block) -> dict[StreamKey, int] | None:
        start, end = block.address, block.address + block.bytes
        former: dict[StreamKey, int] = {}
        kept = []
        for entry in self._loose:
            first, last, home, uses = entry
            if all(self._order.ordered(home, stream, at) for stream, at in uses.items()):
                continue
            if first < end and start < last:
                former.update(uses)
            kept.append(entry)
        self._loose = kept
        return former or None

    def used(self, reads: Parts, writes: Parts, stream: StreamKey) -> None:
        """A launch on ``stream`` reads and writes these; flag what it is not ordered after."""
        if self._sets_up and self._recorder.phase != events.SETUP:
            # Before its first forward pass a script fetches a batch, which takes longer.
            self._sets_up = False
            self._order.host_wait_device()
        number = self._order.launch(stream)
        if self._virtual:
            self._fused(reads, writes)
        for access, parts in (("read", reads), ("write", writes)):
            changes = access == "write"
            for known, extent in parts:
                if changes and known.former is not None:
                    self._check_former(known, stream)
                uses = known.uses
                if uses.only_by(stream):
                    continue
                for other, verb in uses.conflicts(self._order, stream, extent, writes=changes):
                    self._flag(access, known, stream, verb, other)
        for known, extent in reads:
            known.uses.note(stream, number, extent, writes=False)
        for known, extent in writes:
            known.uses.note(stream, number, extent, writes=True)

    def part(self, tensor: Any) -> tuple[DeviceStorage, Extent] | None:
        """The storage a tensor lies in and the bytes it covers, None outside the device."""
        known = self._live.get(tensor.untyped_storage()._cdata)
        return None if known is None else (known, extent_of(tensor))

    def _check_former(self, known: DeviceStorage, stream: StreamKey) -> None:
        former, known.former = known.former or {}, None
        for other, used in former.items():
            if other != stream and not self._order.ordered(stream, other, used):
                self._recorder.violation(
                    "freed in use",
                    f"{_stream(stream)} reuses memory that was freed while {_stream(other)} may "
                    "still use it (no wait, no record_stream)",
                )

    def _flag(
        self, access: str, known: DeviceStorage, stream: StreamKey, verb: str, other: StreamKey
    ) -> None:
        self._recorder.violation(
            "wrong stream",
            f"{access} on {_stream(stream)} of {known.bytes} bytes last {verb} on "
            f"{_stream(other)}, without waiting for it",
        )


def _stream(stream: StreamKey) -> str:
    return f"stream {stream}" if isinstance(stream, int) else f"the stream of group {stream}"
