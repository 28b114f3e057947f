"""Puts the emulated device where ``torch.cuda`` is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainscout.simulators.predictor.io.cache_folder import cache_folder
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.script_kernels import CompiledKernel
from trainscout.simulators.virtual_cluster.traces.events import Begin, End

from .runtime import Cudart, properties_of, runtime_functions
from .streams import AnyEvent, stream_classes
from .system_tool import install_system_tool

# ``torch.accelerator``'s memory functions, which ask an allocator that is not there.


def install_accelerator() -> None:
    """``torch.accelerator`` tells what ``torch.cuda`` tells."""
    cuda = torch.cuda
    names = torch.accelerator.memory.__all__
    functions = {name: getattr(cuda, name) for name in names if hasattr(cuda, name)}
    # Its own are streams of the back end, which know no event of ``torch.cuda``.
    torch.accelerator.current_stream, torch.Stream = cuda.current_stream, cuda.Stream
    torch.Event = AnyEvent
    # One process's GPUs add up each other's tensors without it, whatever torch was built with.
    cuda.nccl.is_available = lambda _: False
    for module in (torch.accelerator, torch.accelerator.memory):
        vars(module).update(functions, get_memory_info=cuda.mem_get_info)


# NVTX ranges become ranges of the trace.


def range_functions(state: RankState) -> dict[str, Callable[..., Any]]:
    """The functions of ``torch.cuda.nvtx``."""
    depth = [0]

    def range_push(msg: object) -> int:
        with state.recorder:
            state.recorder.emit(Begin("user", str(msg)))
        depth[0] += 1
        return depth[0] - 1

    def range_pop() -> int:
        if depth[0]:
            with state.recorder:
                state.recorder.emit(End("user"))
            depth[0] -= 1
        return depth[0]

    @contextlib.contextmanager
    def nested(msg: object, *args: object, **kwargs: object) -> Iterator[None]:
        range_push(str(msg).format(*args, **kwargs))
        try:
            yield
        finally:
            range_pop()

    return {
        "range_push": range_push,
        "range_pop": range_pop,
        # Ranges that may overlap have no place among nested ones.
        "range_start": lambda msg: 0,
        "range_end": lambda range_id: None,
        "mark": lambda msg: None,
        "range": nested,
    }


# ``torch.cuda.FloatTensor`` and its kin: types that scripts test with ``isinstance``.

_KINDS = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
_NAMES = {f"{kind}Tensor": getattr(torch, f"{kind}Tensor").dtype for kind in _KINDS}


class _LegacyType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, torch.Tensor):
            return False
        return bool(instance.is_cuda and instance.dtype == cls.dtype)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not args or isinstance(args[0], (int, torch.Size)):
            return torch.empty(*(args or (0,)), dtype=cls.dtype, device="cuda")
        return torch.tensor(args[0], dtype=cls.dtype, device="cuda")


def legacy_types() -> dict[str, type]:
    """Name in ``torch.cuda`` to type."""
    return {name: _LegacyType(name, (), {"dtype": dtype}) for name, dtype in _NAMES.items()}


def tensor_type(of_host: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.type`` that takes types of the device, and their names."""

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = getattr(torch.cuda, dtype.rpartition(".")[2], dtype)
        if isinstance(dtype, _LegacyType):
            return self.to(self.device if self.is_cuda else "cuda", dtype.dtype)
        return of_host(self, dtype, *args, **kwargs)

    return type_


def set_default_tensor_type(of_host: Callable[[Any], None]) -> Callable[[Any], None]:
    """``torch.set_default_tensor_type`` that takes types of the device: new tensors are there,
    those of ``torch.Tensor(...)`` included.
    """

    def set_default(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"torch.cuda.{kind.__name__}"
        torch.Tensor.__new__ = _new
        if not isinstance(kind, (str, _LegacyType)) or not name.startswith("torch.cuda."):
            torch.set_default_device(None)
            del torch.Tensor.__new__
            of_host(kind)
            return
        torch.set_default_dtype(_NAMES[name.rpartition(".")[2]])
        torch.set_default_device("cuda")

    return set_default


def _new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    if cls is not torch.Tensor:
        return torch._C.TensorBase.__new__(cls, *args, **kwargs)
    device = kwargs.pop("device", None) or "cuda"
    return torch._C.TensorBase.__new__(cls, *args, **kwargs).to(device)


# What emulated libraries say they are; a torch that was built with CUDA names its own version, to
# which compiled packages beside it are held.
CUDA_VERSION, CUDNN_VERSION = torch.version.cuda or "12.9", 91002


def install_cuda(state: RankState) -> None:
    """``torch.cuda`` works as on a machine with ``local_world_size`` of the chosen GPU."""
    functions = runtime_functions(state)
    for name, function in functions.items():
        setattr(torch._C, name, function)
    properties = properties_of(state.gpu, state.capacity_bytes)
    cache = cache_folder() / "native"
    install_system_tool(cache, properties, state.local_world_size, CUDA_VERSION)
    cudart = Cudart(state, properties)
    stream, event, external_stream = stream_classes(state)
    cuda = torch.cuda
    exchange = functions["_cuda_exchangeDevice"]
    count = state.local_world_size
    replacements: dict[str, Any] = {
        "_initialized": True,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "_get_device_properties": lambda device: properties,
        "get_device_properties": lambda device=None: properties,
        "device_count": lambda: count,
        "_device_count_nvml": lambda: count,
        "is_available": lambda: True,
        "cudart": lambda: cudart,
        "Stream": stream,
        "Event": event,
        "ExternalStream": external_stream,
        "_compile_kernel": CompiledKernel,
        "utilization": lambda device=None: 100,
        "memory_usage": lambda device=None: 0,
        "temperature": lambda device=None: 50,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
        "default_generators": tuple(
            torch.Generator(device=f"cuda:{index}") for index in range(count)
        ),
    }
    for name, value in {**replacements, **legacy_types()}.items():
        setattr(cuda, name, value)
    torch.Tensor.type = tensor_type(torch.Tensor.type)
    torch.set_default_tensor_type = set_default_tensor_type(torch.set_default_tensor_type)
    for name in ("Stream", "Event", "ExternalStream"):
        setattr(cuda.streams, name, replacements[name])
    for name, function in range_functions(state).items():
        setattr(cuda.nvtx, name, function)
    cuda.profiler.start, cuda.profiler.stop = cudart.cudaProfilerStart, cudart.cudaProfilerStop
    torch.autograd.profiler.emit_nvtx = lambda *_, **__: contextlib.nullcontext()
    # Else a CUDA event would be tried, and its failure printed, for every operation.
    activities = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    for module in (torch.autograd, torch.autograd.profiler):
        module._supported_activities = lambda: activities
    # Libraries that a build without CUDA refuses to prefer.
    for name in ("_set_linalg_preferred_backend", "_set_blas_preferred_backend"):
        setattr(torch._C, name, lambda library: None)
    # Only cuDNN itself says how much it keeps for a backward pass.
    torch._C._get_cudnn_batch_norm_reserve_space_size = lambda *_: 0
    torch._C._has_cuda = True
    torch.has_cuda = True
    torch.version.cuda = CUDA_VERSION
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: CUDNN_VERSION
    # Recurrent layers leave their weights where they are, and warn of no build without cuDNN.
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    # A host without a GPU seeds none; the generators above are the device's.
    for generator in replacements["default_generators"]:
        generator.manual_seed(torch.initial_seed())
