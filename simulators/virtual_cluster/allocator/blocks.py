"""Blocks of device memory and the pools that keep free ones in best-fit order."""

from __future__ import annotations

from bisect import bisect_left, insort


class Block:
    """A range of one segment; neighbours in the segment are linked.

    ``bytes`` is what it occupies, ``requested_bytes`` what was asked for while it is allocated.
    ``streams`` are those it was used on besides its own, ``waits`` how many of them must still
    pass before it is free. An unmapped block is address space without memory.
    """

    __slots__ = (
        "address",
        "allocated",
        "born",
        "bytes",
        "mapped",
        "next",
        "pool",
        "previous",
        "requested_bytes",
        "stream",
        "streams",
        "waits",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool, mapped: bool = True):
        self.address = address
        self.bytes = size
        self.stream = stream
        self.pool = pool
        self.mapped = mapped
        self.allocated = False
        self.requested_bytes = 0
        self.previous: Block | None = None
        self.next: Block | None = None
        self.streams: set[int] | None = None
        self.waits = 0
        # Searches the pool had seen when the block became free: its age for garbage collection.
        self.born = 0

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

    ``unmapped`` holds address space of expandable segments, ordered by address.
    """

    def __init__(self, small: bool) -> None:
        self.small = small
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
