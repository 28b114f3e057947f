"""PyTorch's CUDA caching allocator, as far as it decides what memory a run takes.

Behaviour as PyTorch documents it ("Memory management" in the CUDA notes) and as its public
sources show: requests are rounded to 512 bytes; up to 1 MiB they are cut from 2 MiB segments,
below 10 MiB from segments of 20 MiB, above from segments of their own in steps of 2 MiB. A free
block serves the smallest request that fits on its stream and is split unless that would leave
1 MiB or less of a large one. Freed neighbours join. A block that ``record_stream`` named another
stream for is free only when that stream has passed the place where it was freed. Before running
out of memory the allocator gives back what it caches and tries again.

Left out: private pools of CUDA graphs, and memory other processes take from the device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import astuple, dataclass

from trainscout.simulators.predictor.question.errors import InputError, require_positive

from .allocator_settings import (
    BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)
from .segments import (
    Block,
    Device,
    Pool,
    absorb,
    grown_block,
    new_segment,
    release_segment,
    split,
    unmap_pages,
)

# Running out of device memory, worded as PyTorch's own error.

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(eq=False)
class OutOfMemory(RuntimeError):  # noqa: N818 - an answer, as torch names it
    """The device has no segment left for a request, even with everything cached given back.

    Args:
        requested_bytes: what was asked of the device (a whole segment).
        capacity_bytes: of the device; ``outside_bytes`` of them the allocator never has.
        free_bytes: of the device at that moment.
        allocated_bytes: in live blocks; ``reserved_bytes``: in segments.
        allowed_bytes: what a memory fraction grants the process, None without one.
    """

    requested_bytes: int
    capacity_bytes: int
    outside_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    allowed_bytes: int | None = None

    def __post_init__(self) -> None:
        # What it is pickled by.
        self.args = astuple(self)

    def __str__(self) -> str:
        return self.message()

    def message(self, device: int = 0) -> str:
        """The sentence scripts look for, with PyTorch's figures and units."""
        allowed = ""
        if self.allowed_bytes is not None:
            allowed = f"{size_text(self.allowed_bytes)} allowed; "
        used = size_text(self.reserved_bytes + self.outside_bytes)
        return (
            f"CUDA out of memory. Tried to allocate {size_text(self.requested_bytes)}. "
            f"GPU {device} has a total capacity of {size_text(self.capacity_bytes)} of which "
            f"{size_text(self.free_bytes)} is free. Including non-PyTorch memory, this process "
            f"has {used} memory in use. {allowed}Of the allocated memory "
            f"{size_text(self.allocated_bytes)} is allocated by PyTorch, and "
            f"{size_text(self.reserved_bytes - self.allocated_bytes)} is reserved by PyTorch but "
            "unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
        )


def size_text(size_bytes: int) -> str:
    """Bytes as PyTorch's messages write them: two decimals of the largest unit that fits."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"


class Allocator:
    """One process's allocator on one device.

    Args:
        capacity_bytes: memory of the device.
        settings: see ``AllocatorSettings``.
        outside_bytes: what the process holds outside the allocator (context, NCCL's buffers).
    """

    def __init__(
        self,
        capacity_bytes: int,
        settings: AllocatorSettings | None = None,
        outside_bytes: int = 0,
    ) -> None:
        require_positive("allocator.capacity_bytes", capacity_bytes)
        if not 0 <= outside_bytes <= capacity_bytes:
            allowed = f"0..{capacity_bytes} bytes"
            raise InputError("allocator.outside_bytes", outside_bytes, "does not fit", allowed)
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.settings = settings or AllocatorSettings()
        self._device = Device(capacity_bytes - outside_bytes)
        self._allowed_bytes: int | None = None
        self._pools = (
            Pool(small=False, page_bytes=self.settings.large_segment_bytes),
            Pool(small=True, page_bytes=SMALL_SEGMENT_BYTES),
        )
        self._plain = not self.settings.power2_divisions
        # Freed blocks that other streams may still use, by stream, in order of freeing.
        self._deferred: dict[int, deque[tuple[int, Block]]] = {}
        self._frees = 0
        self._live: dict[int, Block] = {}
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0
        # Allocated, or freed and deferred.
        self.active_bytes = self.peak_active_bytes = 0
        self.retries = 0
        self.out_of_memories = 0

    @property
    def reserved_bytes(self) -> int:
        return self._device.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self._device.peak_reserved_bytes

    @property
    def fraction(self) -> float:
        """How much of the device the process may take."""
        return (self._allowed_bytes or self.capacity_bytes) / self.capacity_bytes

    def limit(self, fraction: float) -> None:
        """Grant the process only a fraction of the device (``set_per_process_memory_fraction``).

        Raises:
            InputError: for a fraction outside 0..1.
        """
        if not 0 <= fraction <= 1:
            raise InputError("memory_fraction", fraction, "is out of range", "0..1")
        self._allowed_bytes = int(fraction * self.capacity_bytes)
        budget = self.capacity_bytes - self.outside_bytes
        self._device.budget_bytes = min(budget, self._allowed_bytes)

    def allocate(self, requested_bytes: int, stream: int = 0) -> Block:
        """A block for ``requested_bytes`` (at least 1) while ``stream`` is current.

        Raises:
            InputError: for a size that is not positive.
            OutOfMemory: when the device has nothing left; nothing was allocated then.
        """
        if requested_bytes <= 0:
            require_positive("allocator.requested_bytes", requested_bytes)
        if self._plain:
            size = (requested_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        else:
            size = self.settings.rounded(requested_bytes)
        pool = self._pools[size <= SMALL_REQUEST_BYTES]
        block = self._best_fit(pool, stream, size)
        if block is None:
            block = self._from_device(pool, stream, size)
        left = block.bytes - size
        if left and self._splits(pool, size, left):
            pool.add(split(block, size))
        block.allocated = True
        block.requested_bytes = requested_bytes
        self._live[block.address] = block
        self.requested_bytes += requested_bytes
        self.allocated_bytes += block.bytes
        self.active_bytes += block.bytes
        if self.active_bytes > self.peak_active_bytes:
            self.peak_active_bytes = self.active_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self.requested_bytes > self.peak_requested_bytes:
            self.peak_requested_bytes = self.requested_bytes
        return block

    def free(self, block: Block) -> int | None:
        """Give a block up. A number when that is deferred: see ``stream_passed``.

        Raises:
            InputError: for a block that is not allocated.
        """
        if not block.allocated:
            raise InputError("allocator.block", block.address, "is not allocated")
        block.allocated = False
        self.allocated_bytes -= block.bytes
        self.requested_bytes -= block.requested_bytes
        if not block.streams:
            self._reuse(block)
            return None
        self._frees += 1
        block.waits = len(block.streams)
        for stream in block.streams:
            self._deferred.setdefault(stream, deque()).append((self._frees, block))
        block.streams = None
        return self._frees

    def record_stream(self, block: Block, stream: int) -> None:
        """The block is used on another stream too: freeing it waits for that stream."""
        if stream != block.stream:
            if block.streams is None:
                block.streams = set()
            block.streams.add(stream)

    def stream_passed(self, stream: int, deferred: int | None = None) -> None:
        """``stream`` has run what was launched on it before the free numbered ``deferred``
        (None: everything so far)."""
        queue = self._deferred.get(stream)
        while queue and (deferred is None or queue[0][0] <= deferred):
            block = queue.popleft()[1]
            block.waits -= 1
            if not block.waits:
                self._reuse(block)

    def device_passed(self) -> None:
        """Every stream has run everything launched so far."""
        for stream in list(self._deferred):
            self.stream_passed(stream)

    def empty_cache(self) -> None:
        """Give every segment (or page) back that nothing lives in, once all streams have run."""
        self.device_passed()
        for pool in self._pools:
            for block in pool.all_free():
                self._give_back(block)

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_active_bytes = self.active_bytes
        self._device.peak_reserved_bytes = self.reserved_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Of one free block."""
        orders = [order for pool in self._pools for order in pool.free.values()]
        return max((order[-1][0] for order in orders if order), default=0)

    def inactive_split_bytes(self) -> int:
        """Free bytes that cannot be given back because their segment is in use."""
        free = [block for pool in self._pools for block in pool.all_free()]
        return sum(block.bytes for block in free if not block.whole)

    def memory_stats(self) -> dict[str, int]:
        """The figures of ``torch.cuda.memory_stats`` that are kept here, under its names."""
        return {
            "allocated_bytes.all.current": self.allocated_bytes,
            "allocated_bytes.all.peak": self.peak_allocated_bytes,
            "requested_bytes.all.current": self.requested_bytes,
            "requested_bytes.all.peak": self.peak_requested_bytes,
            "active_bytes.all.current": self.active_bytes,
            "active_bytes.all.peak": self.peak_active_bytes,
            "reserved_bytes.all.current": self.reserved_bytes,
            "reserved_bytes.all.peak": self.peak_reserved_bytes,
            "inactive_split_bytes.all.current": self.inactive_split_bytes(),
            "segment.all.current": self._device.segments,
            "allocation.all.current": sum(block.allocated for block in self._live.values()),
            "num_alloc_retries": self.retries,
            "num_ooms": self.out_of_memories,
        }

    def _best_fit(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Take the smallest free block that serves a request out of its pool."""
        pool.searches += 1
        order = pool.free.get(stream)
        if not order:
            return None
        at = bisect_left(order, (size,))
        if at == len(order):
            return None
        if self.settings.expandable_segments:
            # The end of a segment counts as large as it can grow, to be taken last.
            while at + 1 < len(order) and _room(order[at + 1][2]) < _room(order[at][2]):
                at += 1
        block = order[at][2]
        limit = self.settings.never_splits_from
        if block.bytes >= limit and (
            size < limit or block.bytes >= size + self.settings.max_rounding_bytes
        ):
            return None
        del order[at]
        return block

    def _splits(self, pool: Pool, size: int, left: int) -> bool:
        """Whether a block is cut, given what would be left of it."""
        if pool.small or self.settings.expandable_segments:
            return left >= BLOCK_BYTES
        return size < self.settings.never_splits_from and left > SMALL_REQUEST_BYTES

    def _from_device(self, pool: Pool, stream: int, size: int) -> Block:
        """Memory from the device, giving cached memory back when there is none."""
        if self._allowed_bytes is not None and self.settings.collection_threshold:
            self._collect_garbage(self.settings.collection_threshold * self._allowed_bytes)
        block = self._take(pool, stream, size)
        if block is None and self._release_oversize(pool, stream, size):
            block = self._take(pool, stream, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._take(pool, stream, size)
        if block is None:
            self.out_of_memories += 1
            raise OutOfMemory(
                size if self.settings.expandable_segments else self.settings.segment_bytes(size),
                self.capacity_bytes,
                self.outside_bytes,
                self.capacity_bytes - self.outside_bytes - self.reserved_bytes,
                self.allocated_bytes,
                self.reserved_bytes,
                self._allowed_bytes,
            )
        return block

    def _take(self, pool: Pool, stream: int, size: int) -> Block | None:
        if self.settings.expandable_segments:
            return grown_block(self._device, pool, stream, size)
        return new_segment(self._device, pool, stream, self.settings.segment_bytes(size))

    def _release_oversize(self, pool: Pool, stream: int, size: int) -> bool:
        """Give back blocks too large to be split, enough of them for a request.

        One that is large enough alone, else several, largest first.
        """
        if self.settings.max_split_bytes is None or self.settings.expandable_segments:
            return False
        wanted = max(size, self.settings.max_split_bytes)
        order = [entry[2] for entry in pool.free.get(stream, ()) if entry[2].whole]
        enough = [block for block in order if block.bytes >= wanted]
        if enough:
            release_segment(self._device, enough[0])
            return True
        released_bytes = 0
        for block in reversed(order):
            if released_bytes >= wanted or block.bytes < self.settings.max_split_bytes:
                break
            released_bytes += block.bytes
            release_segment(self._device, block)
        return released_bytes >= wanted

    def _collect_garbage(self, threshold_bytes: float) -> None:
        """Give back segments unused for longer than they are on average, all of them, until the
        process holds less than a threshold."""
        pool = self._pools[0]
        while self.reserved_bytes > threshold_bytes:
            whole = [block for block in pool.all_free() if block.whole]
            if not whole:
                return
            ages = [pool.searches - block.born for block in whole]
            mean = sum(ages) / len(ages)
            for block, age in zip(whole, ages, strict=True):
                if age >= mean:
                    release_segment(self._device, block)

    def _give_back(self, block: Block) -> None:
        if self.settings.expandable_segments:
            unmap_pages(self._device, block)
        elif block.whole:
            release_segment(self._device, block)

    def _reuse(self, block: Block) -> None:
        """A block is free: join its neighbours and wait in the pool for a request."""
        del self._live[block.address]
        self.active_bytes -= block.bytes
        block.requested_bytes = 0
        if block.previous is not None:
            absorb(block, block.previous)
        if block.next is not None:
            absorb(block, block.next)
        block.pool.add(block)


def _room(block: Block) -> int:
    """Bytes a free block offers when what lies unmapped behind it is counted too."""
    behind = block.next
    return block.bytes + (behind.bytes if behind is not None and not behind.mapped else 0)
