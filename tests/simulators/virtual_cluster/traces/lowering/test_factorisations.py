"""Factorisations of matrices: columns one after another."""

import numpy as np
import pytest

from tests.simulators.virtual_cluster.traces.lowering.tensors import op, t
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.kernels.streaming import price_streaming
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower


def _kernel(name: str, *shape: int, made: int = 2) -> Streaming:
    lowered = lower(op(f"aten.{name}.default", (t(*shape),), *(t(*shape) for _ in range(made))))
    assert (lowered.estimated, lowered.launches, lowered.rule) == (True, 1, "factorisation")
    (kernel,) = lowered.kernels
    assert isinstance(kernel, Streaming)
    return kernel


@pytest.mark.parametrize(
    ("name", "shape", "measured_s"),
    [
        # Those by which the kernels of a column were counted.
        ("linalg_cholesky_ex", (128, 128), 108.6e-6),
        ("linalg_cholesky_ex", (512, 512), 376.1e-6),
        ("linalg_cholesky_ex", (2048, 2048), 1954.3e-6),
        ("linalg_qr", (128, 32), 189e-6),
        ("_linalg_eigh", (500, 100, 100), 914e-3),
        ("_linalg_svd", (256, 256), 12.2e-3),
        ("_linalg_svd", (8716, 3, 2), 5.34e-3),
        ("_linalg_svd", (16, 4, 2), 89e-6),
    ],
)
def test_times_are_those_that_were_published(
    name: str, shape: tuple[int, ...], measured_s: float
) -> None:
    kernel = _kernel(name, *shape)
    gpu = load_catalogue().gpus["h100"]
    sizes = np.array([[kernel.bytes, kernel.launches]], dtype=np.int64)
    seconds, _, _ = price_streaming(gpu, (kernel.kind,), sizes)
    assert seconds[0] == pytest.approx(measured_s, rel=0.4)


def test_reductions_read_what_is_left_of_the_matrix_for_each_column() -> None:
    once = 3 * 1024 * 1024 * 2
    assert _kernel("linalg_qr", 1024, 1024).bytes == once
    read = _kernel("_linalg_eigh", 1024, 1024).bytes - once
    assert read == pytest.approx(2 * 1024**3 / 3, rel=0.01)
    # Matrices of a batch follow each other, but for those of Cholesky.
    assert _kernel("linalg_qr", 4, 64, 64).launches == 4 * _kernel("linalg_qr", 64, 64).launches
    # Eigenvectors of small ones are many at once, those of larger ones one after another.
    one = _kernel("_linalg_eigh", 2, 32, 32).launches
    assert _kernel("_linalg_eigh", 1024, 32, 32).launches == 2 * one
    assert _kernel("_linalg_eigh", 1024, 33, 33).launches > 900 * one
    # What is computed by a factorisation takes as long.
    pinv, svd = (_kernel(name, 64, 64).launches for name in ("linalg_pinv", "_linalg_svd"))
    assert pinv == svd
    alone = _kernel("linalg_cholesky_ex", 64, 64).launches
    assert _kernel("linalg_cholesky_ex", 4, 64, 64).launches == alone
