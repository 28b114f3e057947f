"""Names of memory-bound kernels in measured tables -> classes of ``Streaming``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

# Operation -> class, "{pass}" filled in with fwd or bwd; first match wins. Only tables hold the
# "serving" classes: kernels of inference servers, which neither fuse nor tune what training does.
_OPERATIONS = (
    (r"^(mlp_act)$", "serving_activation"),
    (r"^(attn_rope)$", "serving_rope"),
    (r"^(input_layernorm|post_attention_layernorm)$", "serving_norm"),
    (r"^(add|div|mul|pow|sub)u?$|^elementwise$", "elementwise"),
    (r"^(gelu|relu|tanh|silu|swiglu|geglu|activation)$", "activation"),
    (r"norm", "norm_{pass}"),
    (r"softmax", "softmax_{pass}"),
    (r"^emb$", "serving_embedding"),
    (r"^embedding$", "embedding{_bwd}"),
    (r"cross_entropy$", "cross_entropy"),
    (r"quant|scale_matrix|^cast$", "cast"),
    (r"dropout", "dropout"),
    (r"adam|optimizer|sgd", "optimizer"),
    (r"permute|dispatch|sort", "permute"),
    (r"memcpy|copy", "memcpy"),
    (r"reduce|grad_norm", "reduce"),
)
# Implementations of norms: fused by hand or by cuDNN, or as PyTorch and its compiler make them.
_PLAIN_NORM = r"^pytorch$|torch_compile|torch2|huggingface|liger|quack"


def streaming_kind(operation: str, pass_: str, implementation: str) -> str:
    """The class that prices an operation, or "" when none does."""
    if operation.startswith(("graph:", "fused_linear")) or pass_ not in ("fwd", "bwd", ""):
        return ""
    pass_ = pass_ or "fwd"
    if re.fullmatch(r"(norm|softmax|embedding)_(fwd|bwd)", operation):
        operation, pass_ = operation.rsplit("_", 1)
    for pattern, kind in _OPERATIONS:
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
