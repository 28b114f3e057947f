"""Running out of device memory, worded as PyTorch's own error."""

from __future__ import annotations

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class OutOfMemory(RuntimeError):  # noqa: N818 - an answer, as torch names it
    """The device has no segment left for a request, even with everything cached given back.

    Args:
        requested_bytes: what was asked of the device (a whole segment).
        capacity_bytes: of the device; ``outside_bytes`` of them the allocator never has.
        free_bytes: of the device at that moment.
        allocated_bytes: in live blocks; ``reserved_bytes``: in segments.
        allowed_bytes: what a memory fraction grants the process, None without one.
    """

    def __init__(
        self,
        requested_bytes: int,
        capacity_bytes: int,
        outside_bytes: int,
        free_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int,
        allowed_bytes: int | None = None,
    ) -> None:
        self.requested_bytes = requested_bytes
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.free_bytes = free_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.allowed_bytes = allowed_bytes
        super().__init__(self.message())

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

    def __reduce__(self) -> tuple[object, ...]:
        return (
            OutOfMemory,
            (
                self.requested_bytes,
                self.capacity_bytes,
                self.outside_bytes,
                self.free_bytes,
                self.allocated_bytes,
                self.reserved_bytes,
                self.allowed_bytes,
            ),
        )


def size_text(size_bytes: int) -> str:
    """Bytes as PyTorch's messages write them: two decimals of the largest unit that fits."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"
