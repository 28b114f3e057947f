"""The functions of ``torch._C`` that ``torch.cuda`` is written on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

from .streams import synchronise_device

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


_CUDA_DEVICE_TYPE = 1
# The version torch 2.13's CUDA builds come with, 2.27.5, as NCCL packs it for torch.
_NCCL_VERSION = (2 << 32) | (27 << 16) | 5
# torch's own text asks CUDA's libraries.
_CONFIG = "PyTorch built with:\n  - CUDA Runtime (emulated)\n  - Build settings: USE_MKL=ON\n"
_TUNING = [
    f"_cuda_tunableop_{name}"
    for name in (
        *("enable", "tuning_enable", "set_max_tuning_duration", "set_max_tuning_iterations"),
        *("set_filename", "write_file_on_exit", "set_rotating_buffer_size"),
    )
]
_POOLS = ("all", "large_pool", "small_pool")
_FIGURES = ("current", "peak", "allocated", "freed")
_COUNTED = (
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"),
    "requested_bytes",
)
_NUMBERS = (
    *("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc"),
    *("num_device_free", "max_split_size"),
)


def runtime_functions(state: RankState) -> dict[str, Callable[..., Any]]:
    """Name in ``torch._C`` to what it does on the emulated device."""
    shim = state.shim
    sync_debug = [0]

    def device_or_current(device: int = -1) -> int:
        return shim.device() if device is None or device < 0 else device

    def set_device(device: int) -> None:
        import torch

        if device >= 0:
            torch._C._accelerator_setDeviceIndex(device)

    def exchange(device: int) -> int:
        before = shim.device()
        if device >= 0:
            set_device(device)
        return before

    def current_stream(device: int = -1) -> tuple[int, int, int]:
        return (shim.stream(), device_or_current(device), _CUDA_DEVICE_TYPE)

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        shim.set_stream(stream_id)

    def synchronise() -> None:
        with state.recorder:
            synchronise_device(state)

    def empty_cache(*_: Any) -> None:
        with state.recorder:
            state.memory.empty_cache()

    def set_sync_debug(mode: int) -> None:
        sync_debug[0] = mode

    def nothing(*_: Any, **__: Any) -> None:
        return None

    capability = str(state.gpu.compute_capability).replace(".", "")
    return {
        "_scatter": _scatter,
        "_gather": _gather,
        "_broadcast": lambda tensor, devices: [tensor.to(f"cuda:{each}") for each in devices],
        "_broadcast_coalesced": lambda tensors, devices, _: [
            [tensor.to(f"cuda:{device}") for tensor in tensors] for device in devices
        ],
        "_show_config": lambda: _CONFIG,
        "_nccl_version": lambda: _NCCL_VERSION,
        "_nccl_version_suffix": lambda: b"",
        "_cuda_init": nothing,
        "_cuda_getDeviceCount": lambda: state.local_world_size,
        "_cuda_getDevice": shim.device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_synchronize": synchronise,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": lambda device=-1: (
            0,
            device_or_current(device),
            _CUDA_DEVICE_TYPE,
        ),
        "_cuda_getCurrentRawStream": lambda device=-1: shim.stream(),
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_emptyCache": empty_cache,
        # What ``torch.compiler.reset()`` imports on its way.
        "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
        "_set_cached_tensors_enabled": nothing,
        "_cuda_memoryStats": lambda device: memory_stats(state),
        "_cuda_resetPeakMemoryStats": lambda *_: state.memory.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": nothing,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_hostMemoryStats": dict,
        "_cuda_setMemoryFraction": lambda fraction, *_: state.memory.allocator.limit(fraction),
        "_cuda_getMemoryFraction": lambda *_: state.memory.allocator.fraction,
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
        "_cuda_record_memory_history": nothing,
        "_cuda_record_memory_history_legacy": nothing,
        "_cuda_attach_out_of_memory_observer": nothing,
        "_cuda_cudaCachingAllocator_enable": nothing,
        # Memory of the host that is pinned is not pooled here.
        **dict.fromkeys(("_accelerator_emptyHostCache", "_host_emptyCache"), nothing),
        "_is_flash_attention_available": lambda: int(capability) >= 80,
        # No operation is tuned: cuBLAS chooses.
        **dict.fromkeys(_TUNING, nothing),
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_ipc_collect": nothing,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getArchFlags": lambda: f"sm_{capability}",
        "_cuda_get_sync_debug_mode": lambda: sync_debug[0],
        "_cuda_set_sync_debug_mode": set_sync_debug,
        "_cuda_sleep": nothing,
        "_cuda_getCurrentBlasHandle": lambda: 0,
        "_cuda_clearCublasWorkspaces": nothing,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_set_cudnn_benchmark_limit": nothing,
    }


def _scatter(
    tensor: Any, devices: list[int], sizes: Any = None, dim: int = 0, streams: Any = None
) -> tuple[Any, ...]:
    """A tensor's parts, each on its device: what DataParallel calls, with one device above all."""
    parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
    pairs = zip(parts, devices, strict=False)
    return tuple([part.to(f"cuda:{device}", non_blocking=True) for part, device in pairs])


def _gather(tensors: Any, dim: int, device: int | None) -> Any:
    import torch

    place = "cpu" if device == -1 else f"cuda:{device or 0}"
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def memory_stats(state: RankState) -> dict[str, Any]:
    """The allocator's figures, nested as torch's runtime tells them."""
    nested: dict[str, Any] = {
        name: {pool: dict.fromkeys(_FIGURES, 0) for pool in _POOLS} for name in _COUNTED
    }
    nested.update(dict.fromkeys(_NUMBERS, 0))
    nested.update({name: dict.fromkeys(_FIGURES, 0) for name in ("oversize_allocations",)})
    nested.update({name: dict.fromkeys(_FIGURES, 0) for name in ("oversize_segments",)})
    for name, number in state.memory.allocator.memory_stats().items():
        parts = name.split(".")
        place = nested
        for part in parts[:-1]:
            place = place.setdefault(part, {})
        place[parts[-1]] = number
    return nested


class Cudart:
    """The few functions of the CUDA runtime that scripts call by themselves."""

    class cudaError:  # noqa: N801 - CUDA's name
        """Status codes."""

        success = 0

    def __init__(self, state: RankState, properties: DeviceProperties) -> None:
        self._state = state
        self._properties = properties

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:  # noqa: N802
        """Free and total bytes of the device."""
        allocator = self._state.memory.allocator
        total = self._properties.total_memory
        return total - allocator.outside_bytes - allocator.reserved_bytes, total

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        """A status code in words."""
        return "no error" if code == 0 else f"error {code}"

    def cudaProfilerStart(self) -> int:  # noqa: N802
        """Nothing is profiled."""
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802
        """Nothing is profiled."""
        return 0

    def cudaHostRegister(self, *_: Any) -> int:  # noqa: N802
        """Nothing happens: what is copied counts as pageable all the same."""
        return 0

    def cudaHostUnregister(self, *_: Any) -> int:  # noqa: N802
        """Nothing happens: what is copied counts as pageable all the same."""
        return 0
