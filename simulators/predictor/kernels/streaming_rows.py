"""Names of memory-bound kernels in measured tables -> classes of ``Streaming``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .measured_rows import ROW_NAMES

if TYPE_CHECKING:
    import pandas as pd

# Implementations of norms: fused by hand or by cuDNN, or as PyTorch and its compiler make them.
_PLAIN_NORM = r"^pytorch$|torch_compile|torch2|huggingface|liger|quack"


def streaming_kind(operation: str, pass_: str, implementation: str) -> str:
    """The class that prices an operation, or "" when none does."""
    if operation.startswith(("graph:", "fused_linear")) or pass_ not in ("fwd", "bwd", ""):
        return ""
    pass_ = pass_ or "fwd"
    if re.fullmatch(r"(norm|softmax|embedding)_(fwd|bwd)", operation):
        operation, pass_ = operation.rsplit("_", 1)
    for pattern, kind in ROW_NAMES["streaming_operations"].items():
        if re.search(pattern, operation):
            kind = kind.replace("{pass}", pass_).replace("{_bwd}", "_bwd" * (pass_ == "bwd"))
            plain = kind.startswith("norm_") and re.search(_PLAIN_NORM, implementation)
            return f"{kind}_plain" if plain else kind
    return ""


def streaming_bytes(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Bytes read plus written, shape (rows,); NaN where neither stated nor implied.

    A cast of an m x k matrix to fp8 reads two bytes an element and writes one.
    """
    stated: NDArray[np.float64] = rows["bytes"].to_numpy(np.float64).copy()
    if "shape" in rows.columns and np.isnan(stated).any():
        shape = rows["shape"].astype(str).str.extract(r"^m=(\d+);k=(\d+)$").astype(float)
        cast = rows["op"].eq("fp8_scale_matrix").to_numpy()
        implied = 3.0 * (shape[0] * shape[1]).to_numpy()
        stated = np.where(np.isnan(stated) & cast, implied, stated)
    return stated
