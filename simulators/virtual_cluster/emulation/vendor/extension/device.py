"""What the library asks of the machine, and kernels that only their tensors are known of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

# Newer than any version the library asks for.
_CUBLAS, _CUDNN, _STREAMS = 130200, 91500, 4


def get_cublasLt_version() -> int:  # noqa: N802 - the library's name
    return _CUBLAS


def get_cudnn_version() -> int:
    return _CUDNN


def get_num_cublas_streams() -> int:
    """Streams that grouped products are spread over."""
    return _STREAMS


def device_supports_multicast(device_id: int = -1) -> bool:
    return bool(torch.cuda.get_device_capability() >= (9, 0))


def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """Lowest and highest."""
    return 0, -5


def ubuf_built_with_mpi() -> bool:
    return False


def nothing(*arguments: Any, **options: Any) -> None:
    """Setting up and tearing down costs no time of a step."""


class FP8TensorMeta:
    """Scales and their history, set from outside."""

    scale: Tensor
    scale_inv: Tensor
    amax_history: Tensor


def writes(name: str, *places: int) -> Callable[..., None]:
    """A kernel that writes its arguments at these places and reads the other tensors."""

    def function(*arguments: Any, **options: Any) -> None:
        given = [*arguments, *options.values()]
        written = [part for place in places for part in _tensors(given[place])]
        read = [
            part for at, value in enumerate(given) if at not in places for part in _tensors(value)
        ]
        launch(name, written, read)

    return function


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.numel() else []
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in _tensors(each)]
    return []


# By name, the arguments written.
_WRITING = {
    "fp8_block_scaling_compute_partial_amax": (1,),
    "fp8_block_scaling_partial_cast": (1,),
    "mxfp8_scaling_compute_partial_amax": (1, 2),
    "mxfp8_scaling_partial_cast": (1, 2),
    "multi_tensor_compute_scale_and_scale_inv": (2,),
    "nvfp4_2d_scale_transpose": (1,),
    "nvfp4_compute_global_scale": (1,),
    "nvfp4_multi_tensor_fused_scale": (2, 3),
    "nvshmem_send_on_current_stream": (1,),
}


def writing_functions() -> dict[str, Callable[..., None]]:
    """Functions that return nothing and are known by what they write."""
    return {name: writes(name, *places) for name, places in _WRITING.items()}


def create_nvshmem_tensor(shape: Any, dtype: torch.dtype) -> Tensor:
    """Memory that other ranks can write."""
    return torch.empty(tuple(shape), dtype=dtype, device="cuda")
