"""What the chosen GPU says of itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from trainscout.simulators.predictor.question.gpu import Gpu

# CUDA C++ Programming Guide, "Technical specifications per compute capability": threads, 32-bit
# registers and shared memory of a multiprocessor, by major compute capability.
_THREADS, _REGISTERS = 2048, 65536
_SHARED_BYTES = {7: 98304, 8: 167936, 9: 233472, 10: 233472, 12: 102400}
# Of it, a block may have 1 KiB less, and 48 KiB without asking for more.
_RESERVED_SHARED_BYTES, _DEFAULT_SHARED_BYTES = 1024, 49152


@dataclass(frozen=True)
class DeviceProperties:
    """The fields of torch's device properties, under its names."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    uuid: str
    shared_memory_per_multiprocessor: int
    warp_size: int = 32
    max_threads_per_multi_processor: int = _THREADS
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = _REGISTERS
    shared_memory_per_block: int = _DEFAULT_SHARED_BYTES
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    gcnArchName: str = ""  # noqa: N815 - torch's name

    @property
    def shared_memory_per_block_optin(self) -> int:
        """Shared memory a block may ask for."""
        return self.shared_memory_per_multiprocessor - _RESERVED_SHARED_BYTES


def properties_of(gpu: Gpu, memory_bytes: int) -> DeviceProperties:
    """The properties of a GPU with so much memory."""
    major, minor = capability_of(gpu)
    return DeviceProperties(
        name=name_of(gpu),
        major=major,
        minor=minor,
        total_memory=memory_bytes,
        multi_processor_count=int(gpu.sms),
        L2_cache_size=int(gpu.l2_bytes or 0),
        uuid=hashlib.md5(gpu.name.encode(), usedforsecurity=False).hexdigest(),
        shared_memory_per_multiprocessor=_SHARED_BYTES.get(major, _SHARED_BYTES[9]),
    )


def name_of(gpu: Gpu) -> str:
    """The name the device tells: scripts look for H100 and the like in it."""
    return f"{gpu.architecture.vendor} {gpu.name}".upper().replace("_", "-")


def capability_of(gpu: Gpu) -> tuple[int, int]:
    """Compute capability as two numbers."""
    major, _, minor = str(gpu.compute_capability).partition(".")
    return int(major), int(minor or 0)
