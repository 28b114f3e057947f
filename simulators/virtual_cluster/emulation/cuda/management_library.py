"""NVIDIA's management library as its Python binding (``pynvml``) shows it: the virtual GPUs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def show_virtual_gpus(module: ModuleType) -> None:
    """The binding's functions that scripts log; a handle is the GPU's index in its node.

    Memory is that of the rank which runs here; what a GPU would measure is what
    ``torch.cuda`` says of it.
    """
    cuda = torch.cuda

    def memory(handle: int, version: Any = None) -> SimpleNamespace:
        free, total = cuda.mem_get_info()
        return SimpleNamespace(total=total, free=free, used=total - free)

    functions: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "virtual",
        "nvmlDeviceGetCount": lambda: cuda.device_count(),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: cuda.get_device_name(),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: cuda.get_device_capability(),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
            gpu=cuda.utilization(), memory=cuda.memory_usage()
        ),
        "nvmlDeviceGetTemperature": lambda handle, sensor: cuda.temperature(),
        "nvmlDeviceGetPowerUsage": lambda handle: cuda.power_draw(),
    }
    for name, function in functions.items():
        setattr(module, name, function)
