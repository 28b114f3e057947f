"""Measured kernels beside their prices."""

import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.kernels.observed import observe, price_of
from trainscout.simulators.predictor.workload.ir import Gemm

GPU = load_catalogue().gpus["h100"]
OFTEN, ONCE = (Gemm("", 4096, 4096, size, "bf16") for size in (1024, 65536))


def test_a_class_weighs_kernels_by_their_calls():
    often_s, once_s = price_of(GPU, (OFTEN,)), price_of(GPU, (ONCE,))
    alone = [((OFTEN,), 2 * often_s, 500), ((ONCE,), once_s, 1)]
    found = observe(GPU, alone, 1.0, 501, 1)
    assert found.priced_s == pytest.approx(500 * often_s + once_s)
    assert found.measured_s == pytest.approx(1000 * often_s + once_s)
    assert 1.5 < found.factor < 2
    # Several calls of one shape are one shape, of their mean.
    again = observe(GPU, [((OFTEN,), times * often_s, 1) for times in (1, 2, 3)], 1.0, 3, 1)
    assert (again.shapes, again.factor) == (1, pytest.approx(2.0))
    assert again.log_spread == 0
