"""The module ``transformer_engine_torch``: everything it offers, by the names it has there.

Loaded under that name, it is where the compiled library would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor import compiled_kernels
from trainscout.simulators.virtual_cluster.emulation.vendor.extension import (
    attention,
    elementwise,
    enumerations,
    experts,
    overlap,
    products,
    quantized,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import writes
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refused

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


class FP8TensorMeta:
    """Scales and their history, set from outside."""

    scale: Tensor
    scale_inv: Tensor
    amax_history: Tensor


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
}


_MODULES = (attention, elementwise, experts, overlap, products, quantized)


def _public(module: Any) -> dict[str, Any]:
    """What a module of this folder defines under the library's own names."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


def _names() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for module in _MODULES:
        made |= _public(module)
    adams = ("", "_param_remainder", "_fp8", "_capturable", "_capturable_master")
    made |= {f"multi_tensor_adam{kind}": compiled_kernels.multi_tensor_adam for kind in adams}
    others = ("l2norm", "unscale_l2norm", "scale", "scale_tensor", "sgd")
    made |= {
        f"multi_tensor_{name}": getattr(compiled_kernels, f"multi_tensor_{name}")
        for name in others
    }
    made |= {
        "fused_amax_and_scale_update_after_reduction": quantized.update_scales,
        "fused_multi_row_padding": experts.pad_rows,
        "fused_multi_row_unpadding": experts.pad_rows,
        "fused_moe_aux_loss_fwd_graph_safe": experts.fused_moe_aux_loss_fwd,
        "_num_cublas_streams": _STREAMS,
    }
    made |= elementwise.activation_functions() | elementwise.softmax_functions()
    made |= {name: writes(name, *places) for name, places in _WRITING.items()}
    kinds = {name: value for name, value in vars(enumerations).items() if isinstance(value, type)}
    return made | {name: kind for name, kind in kinds.items() if name != "IntEnum"}


globals().update(_names())


def __getattr__(name: str) -> Callable[..., Any]:
    """A function of another version of the library, which refuses to be called."""
    if name.startswith("_"):
        raise AttributeError(name)
    return refused(f"transformer_engine_torch.{name}", "a function this version does not know")
