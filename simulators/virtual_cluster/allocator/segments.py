"""Segments: memory taken from the device and given back, whole or (expandable) page by page."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

# Blocks of device memory and the pools that keep free ones in best-fit order.


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A range of one segment; neighbours in the segment are linked.

    ``bytes`` is what it occupies, ``requested_bytes`` what was asked for while it is allocated.
    ``streams`` are those it was used on besides its own, ``waits`` how many of them must still
    pass before it is free. An unmapped block is address space without memory.
    """

    address: int
    bytes: int
    stream: int
    pool: Pool
    mapped: bool = True
    allocated: bool = False
    requested_bytes: int = 0
    previous: Block | None = None
    next: Block | None = None
    streams: set[int] | None = None
    waits: int = 0
    # Searches the pool had seen when the block became free: its age for garbage collection.
    born: int = 0

    @property
    def whole(self) -> bool:
        """Whether the block is all there is of its segment."""
        return self.previous is None and self.next is None

    @property
    def idle(self) -> bool:
        """Neither allocated nor waiting for other streams."""
        return not self.allocated and not self.waits


class Pool:
    """Free blocks of one size class by stream, ordered by size, then address.

    ``unmapped`` holds address space of expandable segments, ordered by address, which grow by
    ``page_bytes``.
    """

    def __init__(self, small: bool, page_bytes: int) -> None:
        self.small = small
        self.page_bytes = page_bytes
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        self.searches = 0

    def add(self, block: Block) -> None:
        if block.mapped:
            block.born = self.searches
            order = self.free.setdefault(block.stream, [])
            insort(order, (block.bytes, block.address, block))
        else:
            insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove(self, block: Block) -> None:
        if block.mapped:
            order = self.free[block.stream]
            del order[bisect_left(order, (block.bytes, block.address))]
        else:
            spaces = self.unmapped[block.stream]
            del spaces[bisect_left(spaces, (block.address,))]

    def all_free(self) -> list[Block]:
        """Every mapped free block, stream by stream."""
        return [entry[2] for order in self.free.values() for entry in order]


def split(block: Block, size: int) -> Block:
    """Cut a block to ``size`` bytes; returns the rest, which belongs to no pool yet."""
    rest = Block(block.address + size, block.bytes - size, block.stream, block.pool, block.mapped)
    rest.previous, rest.next = block, block.next
    if block.next is not None:
        block.next.previous = rest
    block.next = rest
    block.bytes = size
    return rest


def absorb(block: Block, neighbour: Block | None) -> int:
    """Join an idle neighbour of the same kind into ``block``; returns the bytes gained."""
    if neighbour is None or not neighbour.idle or neighbour.mapped != block.mapped:
        return 0
    block.pool.remove(neighbour)
    if block.previous is neighbour:
        block.address = neighbour.address
        block.previous = neighbour.previous
        if block.previous is not None:
            block.previous.next = block
    else:
        block.next = neighbour.next
        if block.next is not None:
            block.next.previous = block
    block.bytes += neighbour.bytes
    return neighbour.bytes


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


def grown_block(device: Device, pool: Pool, stream: int, size: int) -> Block | None:
    """A free block of at least ``size`` bytes (out of the pool) at the end of mapped memory.

    An expandable segment has addresses for more than the whole device; pages are mapped to it
    as they are needed. None without memory for them; what was mapped on the way stays.
    """
    block = _growth_place(pool, stream, size)
    if block is None:
        page = pool.page_bytes
        space = -(-device.budget_bytes * 9 // 8 // page) * page
        space = max(space, -(-size // page) * page)
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
    page = space.pool.page_bytes
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
    pool, page = block.pool, block.pool.page_bytes
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
