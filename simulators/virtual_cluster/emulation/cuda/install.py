"""Puts the emulated device where ``torch.cuda`` is."""

from __future__ import annotations

from typing import Any

import torch

from trainscout.simulators.predictor.io.cache_folder import cache_folder
from trainscout.simulators.virtual_cluster.emulation.cuda.legacy_types import (
    legacy_types,
    set_default_tensor_type,
    tensor_type,
)
from trainscout.simulators.virtual_cluster.emulation.cuda.nvtx import range_functions
from trainscout.simulators.virtual_cluster.emulation.cuda.properties import properties_of
from trainscout.simulators.virtual_cluster.emulation.cuda.runtime import Cudart, runtime_functions
from trainscout.simulators.virtual_cluster.emulation.cuda.streams import stream_classes
from trainscout.simulators.virtual_cluster.emulation.cuda.system_tool import install_system_tool
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.script_kernels import CompiledKernel

# What emulated libraries say they are; the versions torch 2.13's CUDA builds come with.
CUDA_VERSION, CUDNN_VERSION = "12.9", 91002


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
    torch._C._has_cuda = True
    torch.has_cuda = True
    torch.version.cuda = CUDA_VERSION
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: CUDNN_VERSION
    # A host without a GPU seeds none; the generators above are the device's.
    for generator in replacements["default_generators"]:
        generator.manual_seed(torch.initial_seed())
