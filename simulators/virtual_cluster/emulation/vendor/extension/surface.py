"""The module ``transformer_engine_torch``: everything it offers, by the names it has there.

Loaded under that name, it is where the compiled library would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.vendor import multi_tensor
from trainscout.simulators.virtual_cluster.emulation.vendor.extension import (
    attention,
    device,
    elementwise,
    empty_tensors,
    enumerations,
    experts,
    overlap,
    products,
    quantized,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refused

_MODULES = (
    attention,
    device,
    elementwise,
    empty_tensors,
    experts,
    overlap,
    products,
    quantized,
)


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
    adam, norm = multi_tensor.multi_tensor_adam, multi_tensor.multi_tensor_l2norm
    adams = ("", "_param_remainder", "_fp8", "_capturable", "_capturable_master")
    made |= {f"multi_tensor_adam{kind}": adam for kind in adams}
    made |= {
        "multi_tensor_l2norm": norm,
        "multi_tensor_unscale_l2norm": multi_tensor.multi_tensor_unscale_l2norm,
        "multi_tensor_scale": multi_tensor.multi_tensor_scale,
        "multi_tensor_scale_tensor": multi_tensor.multi_tensor_scale_tensor,
        "multi_tensor_sgd": multi_tensor.multi_tensor_sgd,
        "fused_amax_and_scale_update_after_reduction": quantized.update_scales,
        "fused_multi_row_padding": experts.pad_rows,
        "fused_multi_row_unpadding": experts.pad_rows,
        "init_nvshmem_backend": device.nothing,
        "nvshmem_finalize": device.nothing,
        "nvshmem_wait_on_current_stream": device.nothing,
        "fused_moe_aux_loss_fwd_graph_safe": experts.fused_moe_aux_loss_fwd,
        "_num_cublas_streams": device.get_num_cublas_streams(),
    }
    made |= elementwise.activation_functions() | elementwise.softmax_functions()
    made |= device.writing_functions()
    kinds = {name: value for name, value in vars(enumerations).items() if isinstance(value, type)}
    return made | {name: kind for name, kind in kinds.items() if name != "IntEnum"}


globals().update(_names())


def __getattr__(name: str) -> Callable[..., Any]:
    """A function of another version of the library, which refuses to be called."""
    if name.startswith("_"):
        raise AttributeError(name)
    return refused(f"transformer_engine_torch.{name}", "a function this version does not know")
