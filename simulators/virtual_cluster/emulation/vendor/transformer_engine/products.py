"""Matrix products of plain and 8-bit operands, forward and in both gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.enumerations import (
    TORCH_TYPES,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.extension.products import (
    generic_gemm,
    te_general_grouped_gemm,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    QuantizedStorage,
)

Operand: TypeAlias = Tensor | QuantizedStorage
TE_DType = {torch_type: kind for kind, torch_type in TORCH_TYPES.items()}
_TRANSPOSED = {"forward": (True, False), "dgrad": (False, False), "wgrad": (False, True)}
_MIB = 2**20
_workspaces: dict[tuple[int, int], Tensor] = {}


def workspace_bytes() -> int:
    """Scratch memory cuBLAS is given: 32 MiB from Hopper on and room for alignment, else 4."""
    return 32 * _MIB + 1024 if torch.cuda.get_device_capability() >= (9, 0) else 4 * _MIB


def get_workspace(streams: int = 1) -> Tensor:
    """Scratch memory of this device's products, allocated once for each stream they use."""
    device = torch.cuda.current_device()
    for stream in range(streams):
        if (device, stream) not in _workspaces:
            _workspaces[device, stream] = torch.empty(
                workspace_bytes(), dtype=torch.uint8, device="cuda"
            )
    return _workspaces[device, 0]


def product(
    use: str,
    left: Operand,
    right: Operand,
    dtype: torch.dtype,
    out: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    accumulate: bool = False,
    **overlap: Any,
) -> tuple[Any, ...]:
    """Input and weight (forward), output gradient and weight (dgrad) or input (wgrad) multiplied.

    Returns the product and, where ``bias`` is given to a wgrad, the sum of the output gradient.
    """
    transa, transb = _TRANSPOSED[use]
    epilogue = (bias, None, False, None, use == "wgrad")
    given = (right, transa, left, transb, out, None, TE_DType[dtype], *epilogue)
    return generic_gemm(*given, get_workspace(), 0, accumulate, False, **overlap)[:2]


# Grouped products are launched over so many streams in turn, each with scratch memory of its own.
_STREAMS = 4


def grouped_product(
    use: str,
    left: Sequence[Operand],
    right: Sequence[Operand],
    out: Sequence[Tensor],
    splits: Sequence[int],
    accumulate: bool = False,
) -> None:
    """As ``product``, for each group, into ``out``."""
    workspace = get_workspace(_STREAMS)
    transa, transb = _TRANSPOSED[use]
    given: Any = (right, transa, left, transb, out, None, splits, [], None, len(out) == 1, [])
    te_general_grouped_gemm(*given, use == "wgrad", workspace, 0, accumulate)


def general_gemm(
    A: Tensor,  # noqa: N803 - the library's names
    B: Tensor,  # noqa: N803
    workspace: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    quantization_params: Any = None,
    gelu: bool | None = None,
    gelu_in: Tensor | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: Tensor | None = None,
    bias: Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
    **communication: Any,
) -> tuple[Any, ...]:
    """The library's entry for single products: ``B`` comes first in row-major terms.

    Returns the product, the bias gradient, and two things only fused epilogues make.
    """
    dtype = TE_DType[out_dtype or (B.dtype if out is None else out.dtype)]
    given = (A, layout[0] == "T", B, layout[1] == "T", out, None, dtype, bias, None, False, None)
    return generic_gemm(*given, grad, workspace, 0, accumulate, use_split_accumulator)
