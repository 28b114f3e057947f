"""Segments: memory taken from the device and given back, whole or (expandable) page by page."""

from __future__ import annotations

from trainscout.simulators.virtual_cluster.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    SMALL_SEGMENT_BYTES,
)
from trainscout.simulators.virtual_cluster.allocator.blocks import Block, Pool, absorb, split


class Device:
    """What the device can still give: a budget of bytes and addresses that never repeat."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.segments = 0
        self._address = 0

    def reserve(self, size: int) -> bool:
        """Take memory; False when the budget does not hold it."""
        if self.reserved_bytes + size > self.budget_bytes:
            return False
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def release(self, size: int) -> None:
        self.reserved_bytes -= size

    def addresses(self, size: int) -> int:
        """The start of ``size`` fresh addresses, apart from all others."""
        start = self._address
        self._address += size
        return start


def new_segment(device: Device, pool: Pool, stream: int, size: int) -> Block | None:
    """A block that is a whole new segment, or None without memory for it."""
    if not device.reserve(size):
        return None
    device.segments += 1
    return Block(device.addresses(size), size, stream, pool)


def release_segment(device: Device, block: Block) -> None:
    """Give a free block back that is a whole segment."""
    block.pool.remove(block)
    device.release(block.bytes)
    device.segments -= 1


def page_bytes(pool: Pool) -> int:
    """Granularity at which an expandable segment grows."""
    return SMALL_SEGMENT_BYTES if pool.small else LARGE_SEGMENT_BYTES


def grown_block(device: Device, pool: Pool, stream: int, size: int) -> Block | None:
    """A free block of at least ``size`` bytes (out of the pool) at the end of mapped memory.

    An expandable segment has addresses for more than the whole device; pages are mapped to it
    as they are needed. None without memory for them; what was mapped on the way stays.
    """
    block = _growth_place(pool, stream, size)
    if block is None:
        space = -(-device.budget_bytes * 9 // 8 // page_bytes(pool)) * page_bytes(pool)
        space = max(space, -(-size // page_bytes(pool)) * page_bytes(pool))
        block = Block(device.addresses(space), space, stream, pool, mapped=False)
        pool.add(block)
        device.segments += 1
    if not block.mapped and not _map(device, block, min(size, block.bytes)):
        return None
    while block.bytes < size:
        more = block.next
        assert more is not None
        if not _map(device, more, min(size - block.bytes, more.bytes)):
            return None
        # The pages joined the block before them.
        block = more
    pool.remove(block)
    return block


def _growth_place(pool: Pool, stream: int, size: int) -> Block | None:
    """The lowest idle stretch that ends in unmapped space and is long enough."""
    for _, space in pool.unmapped.get(stream, ()):
        start = space
        if space.previous is not None and space.previous.idle:
            start = space.previous
        room, block = 0, start
        while room < size and block is not None and block.idle:
            room += block.bytes
            block = block.next  # type: ignore[assignment]
        if room >= size:
            return start
    return None


def _map(device: Device, space: Block, size: int) -> bool:
    """Map the first ``size`` bytes of unmapped space, in whole pages, and join neighbours."""
    page = page_bytes(space.pool)
    mapped = min(-(-size // page) * page, space.bytes)
    if not device.reserve(mapped):
        return False
    pool = space.pool
    pool.remove(space)
    if mapped < space.bytes:
        pool.add(split(space, mapped))
    space.mapped = True
    absorb(space, space.previous)
    absorb(space, space.next)
    pool.add(space)
    return True


def unmap_pages(device: Device, block: Block) -> int:
    """Give back the whole pages inside a free block; returns their bytes."""
    pool, page = block.pool, page_bytes(block.pool)
    first = -(-block.address // page) * page
    last = (block.address + block.bytes) // page * page
    if last <= first:
        return 0
    pool.remove(block)
    if first > block.address:
        head = block
        block = split(head, first - head.address)
        pool.add(head)
    if last < block.address + block.bytes:
        pool.add(split(block, last - first))
    device.release(block.bytes)
    block.mapped = False
    absorb(block, block.previous)
    absorb(block, block.next)
    pool.add(block)
    return last - first
