"""A plain twin of the caching allocator's default mode: segments as lists, every search a scan."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 2**20


@dataclass
class LayerSpec:
    address: int
    bytes: int
    live: bool = False


@dataclass
class Segment:
    stream: int
    small: bool
    pieces: list[LayerSpec] = field(default_factory=list)


class NaiveAllocator:
    def __init__(self, capacity_bytes: int) -> None:
        self.capacity = capacity_bytes
        self.segments: list[Segment] = []
        self.address = 0

    def reserved(self) -> int:
        return sum(piece.bytes for segment in self.segments for piece in segment.pieces)

    def allocated(self) -> int:
        pieces = [piece for segment in self.segments for piece in segment.pieces]
        return sum(piece.bytes for piece in pieces if piece.live)

    def allocate(self, requested: int, stream: int) -> LayerSpec | None:
        size = max(512, (requested + 511) // 512 * 512)
        small = size <= MIB
        found = self.search(size, stream, small)
        if found is None:
            fresh = 2 * MIB if small else 20 * MIB
            if size >= 10 * MIB:
                fresh = (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
            if self.reserved() + fresh > self.capacity:
                self.segments = [
                    each for each in self.segments if any(p.live for p in each.pieces)
                ]
            if self.reserved() + fresh > self.capacity:
                return None
            found = Segment(stream, small), LayerSpec(self.address, fresh)
            found[0].pieces.append(found[1])
            self.address += fresh
            self.segments.append(found[0])
        segment, piece = found
        left = piece.bytes - size
        if left >= 512 if small else left > MIB:
            at = segment.pieces.index(piece)
            segment.pieces.insert(at + 1, LayerSpec(piece.address + size, left))
            piece.bytes = size
        piece.live = True
        return piece

    def search(self, size: int, stream: int, small: bool) -> tuple[Segment, LayerSpec] | None:
        fitting = [
            (piece.bytes, piece.address, segment, piece)
            for segment in self.segments
            if segment.stream == stream and segment.small == small
            for piece in segment.pieces
            if not piece.live and piece.bytes >= size
        ]
        if not fitting:
            return None
        return min(fitting, key=lambda entry: entry[:2])[2:]

    def free(self, piece: LayerSpec) -> None:
        piece.live = False
        for segment in self.segments:
            joined: list[LayerSpec] = []
            for each in segment.pieces:
                if joined and not joined[-1].live and not each.live:
                    joined[-1].bytes += each.bytes
                else:
                    joined.append(each)
            segment.pieces = joined
