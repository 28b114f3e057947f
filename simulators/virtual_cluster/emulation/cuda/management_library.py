"""NVIDIA's management library as its Python binding (``pynvml``) shows it: the virtual GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch


class NVMLError(Exception):
    """What the binding raises, where it is not installed and a stand-in takes its place."""

    def __str__(self) -> str:
        return "Not Supported"


def show_virtual_gpus(module: ModuleType) -> None:
    """The binding's functions that scripts log; a handle is the GPU's index in its node.

    Memory is that of the rank which runs here; what a GPU would measure is what
    ``torch.cuda`` says of it. Every core of this machine is as near to each. The others are not
    supported, as on a device that lacks what they ask for.
    """
    cuda = torch.cuda

    def memory(handle: int, version: Any = None) -> SimpleNamespace:
        free, total = cuda.mem_get_info()
        return SimpleNamespace(total=total, free=free, used=total - free)

    def cores(handle: int, words: int, scope: Any = None) -> list[int]:
        mask = sum(1 << core for core in os.sched_getaffinity(0))
        return [mask >> 64 * word & (1 << 64) - 1 for word in range(words)]

    def unsupported(*arguments: Any) -> NoReturn:
        raise module.NVMLError(module.NVML_ERROR_NOT_SUPPORTED)

    functions: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "virtual",
        "nvmlDeviceGetCount": lambda: cuda.device_count(),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle:08x}-0000-0000-0000-000000000000",
        "nvmlDeviceGetName": lambda handle: cuda.get_device_name(),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: cuda.get_device_capability(),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
            gpu=cuda.utilization(), memory=cuda.memory_usage()
        ),
        "nvmlDeviceGetTemperature": lambda handle, sensor: cuda.temperature(),
        "nvmlDeviceGetPowerUsage": lambda handle: cuda.power_draw(),
        "nvmlDeviceGetCpuAffinity": cores,
        "nvmlDeviceGetCpuAffinityWithinScope": cores,
        "nvmlDeviceSetCpuAffinity": lambda handle: None,
        "_nvmlGetFunctionPointer": unsupported,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    if hasattr(module, "NVMLError"):
        return

    def other(name: str) -> Callable[..., NoReturn]:
        if name.startswith("nvml"):
            return unsupported
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    stand_in = {"NVMLError": NVMLError, "NVML_ERROR_NOT_SUPPORTED": 3, "__getattr__": other}
    for name, value in stand_in.items():
        setattr(module, name, value)
