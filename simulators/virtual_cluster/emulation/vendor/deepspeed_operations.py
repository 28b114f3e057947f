"""What DeepSpeed compiles when it is first used, which wants a CUDA toolkit: here it is there."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from torch import _utils

from trainscout.simulators.virtual_cluster.emulation.vendor.compiled_kernels import (
    multi_tensor_adam,
)


def _nothing(*args: Any, **kwargs: Any) -> int:
    """Work of the host, on memory that has no data: its time is not in the trace."""
    return 0


_MADE = {
    "fused_adam": SimpleNamespace(multi_tensor_adam=multi_tensor_adam),
    "cpu_adam": SimpleNamespace(
        create_adam=_nothing, destroy_adam=_nothing, adam_update=_nothing, adam_rollback=_nothing
    ),
    "utils": SimpleNamespace(
        flatten=_utils._flatten_dense_tensors, unflatten=_utils._unflatten_dense_tensors
    ),
}


def install_operations(module: ModuleType) -> None:
    """Have DeepSpeed's builders hand out what is made here, and build the rest."""
    builder = module.OpBuilder
    build = builder.load

    def load(self: Any, verbose: bool = False) -> Any:
        made = _MADE.get(self.name)
        return made if made is not None else build(self, verbose)

    builder.load = load
