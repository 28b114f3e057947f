"""Factorisations of matrices (cuSOLVER): chains of small kernels, column after column.

LAPACK's operations (2/3 n^3 to 9 n^3) are not what they take: each column waits for the one
before it, so that a matrix of 1,024 columns runs thousands of kernels, each as short as kernels
get. How many a column takes is *estimated*, from published times at 2 us a kernel:

- Cholesky: .73 to .95 us a column of 128, 512 and 2,048 (pytorch/pytorch#173515)
- QR: 189 us for 128 x 32 on an H100, both factors (pytorch/pytorch#173788)
- LU: 13.2 ms for 1,024 x 1,024 in fp64 (pytorch/pytorch#56887)
- eigenvectors, symmetric: 914 ms for 500 of 100 x 100, one after another (pytorch/pytorch#174674)
- singular vectors: 12.2 ms for 256 x 256 in fp64 on an A100 (tensor4all/tenferro-rs#1720)

Of matrices up to 32 x 32 PyTorch has many factored at once, by Jacobi's method (``syevjBatched``,
``gesvdjBatched``; BatchLinearAlgebraLib.cpp). How many is *estimated*, too:

- eigenvectors: .1 ms for 512 of 3 x 3 on a GH200 (pytorch/pytorch#183806, which is open: PyTorch
  2.11 with CUDA 13.0 takes 13 ms; that is not followed)
- singular vectors: 5.34 ms for 8,716 of 3 x 2, 90 us for a few of 4 x 2 (pytorch/pytorch#86234,
  #88502)

Reductions to three or two diagonals read what is left of the matrix again for each column (half of
their operations; Golub and Van Loan, 8.3.1 and 8.6.1). Large matrices take longer than this says:
singular vectors of 1,200 x 1,200 complex numbers 4 times as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes

from .tensors import FREE, Lowered, elements, moved, on_device, short_name, tensor

RULE = "factorisation"
# Rows and columns of the largest matrices that Jacobi's method takes.
_SMALL = 32


@dataclass(frozen=True)
class _Method:
    """Kernels a column; ``reduces``: each reads what is left of the matrix; ``batched``: matrices
    of a batch are factored together, others one after another, but for ``small`` ones at once."""

    kernels_per_column: float
    reduces: bool = False
    batched: bool = False
    small: int = 1

    def __call__(self, op: Op) -> Lowered:
        matrix = tensor(op, 0)
        if not elements(matrix) or len(matrix.shape) < 2:
            return FREE
        *batch, rows, columns = matrix.shape
        steps = min(rows, columns)
        total = moved(on_device(op.inputs)) + moved(op.outputs)
        if self.reduces:
            # The sum of (rows - k) (columns - k) over k of all columns.
            left = rows * columns * steps - (rows + columns) * steps**2 // 2 + steps**3 // 3
            total += math.prod(batch) * left * item_bytes(matrix)
        at_once = self.small if max(rows, columns) <= _SMALL else 1
        times = 1 if self.batched else math.ceil(math.prod(batch) / at_once)
        launches = max(1, math.ceil(steps * self.kernels_per_column)) * times
        kernel = Streaming(short_name(op), "reduce", total, launches)
        return Lowered((kernel,), RULE, estimated=True, one_call=True)


_CHOLESKY = _Method(0.45, batched=True)
_LU = _Method(6.5, batched=True)
_QR = _Method(3.0)
_EIGEN = _Method(9.0, reduces=True, small=512)
_SINGULAR = _Method(24.0, reduces=True, small=147)
TABLE = {
    "aten.linalg_cholesky_ex": _CHOLESKY,
    "aten.cholesky": _CHOLESKY,
    "aten.linalg_lu_factor_ex": _LU,
    "aten.linalg_inv_ex": _LU,
    "aten._linalg_solve_ex": _LU,
    "aten._linalg_det": _LU,
    "aten._linalg_slogdet": _LU,
    "aten.linalg_qr": _QR,
    "aten.geqrf": _Method(1.5),
    "aten.linalg_householder_product": _Method(1.5),
    # By QR (LAPACK's gels), and by singular vectors, as ATen's LinearAlgebra.cpp.
    "aten.linalg_lstsq": _QR,
    "aten.linalg_pinv": _SINGULAR,
    "aten._linalg_eigh": _EIGEN,
    "aten._linalg_svd": _SINGULAR,
}
