"""The emulated kernels as operations of torch's dispatcher: shapes and types, nothing computed.

Each kernel of ``traces.vocabulary`` becomes ``torch.ops.emulated.<kernel>`` with a Meta
implementation, so that one call is one logged operation, with outputs as the real kernel makes
them. None is differentiable by itself: the autograd functions of the vendor package call them in
both passes and save what the real ones save.
"""

from __future__ import annotations

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import (
    experts,
    pointwise,
    products,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    dtype_name,
    kernel,
)

__all__ = ["dtype_name", "experts", "kernel", "pointwise", "products"]
