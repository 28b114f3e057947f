"""Convolutions by their shapes."""

from tests.simulators.virtual_cluster.traces.lowering.tensors import only, op, t
from trainscout.simulators.predictor.workload.ir import Convolution, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower


def _conv(name: str = "convolution") -> Op:
    x, weight = t(8, 3, 224, 224), t(64, 3, 7, 7)
    out = t(8, 64, 112, 112)
    settings = ((2, 2), (3, 3), (1, 1), False, (0, 0), 1)
    if name == "convolution":
        return op("aten.convolution.default", (x, weight, t(64), *settings), out)
    return op(
        "aten.convolution_backward.default",
        (out, x, weight, (64,), *settings, (False, True, True)),
        t(0),
        weight,
        t(64),
    )


def test_convolutions() -> None:
    convolution, bias = lower(_conv()).kernels
    assert isinstance(convolution, Convolution)
    assert convolution.out_size == (112, 112)
    assert convolution.flops == 2 * 8 * 64 * 112 * 112 * 3 * 49
    assert bias == Streaming("bias_add", "elementwise", 2 * 8 * 64 * 112 * 112 * 2)
    weight_gradient, bias_gradient = lower(_conv("backward")).kernels
    assert isinstance(weight_gradient, Convolution)
    assert weight_gradient.pass_ == "wgrad"
    assert weight_gradient.flops == convolution.flops
    assert bias_gradient == Streaming("bias_grad", "reduce", 8 * 64 * 112 * 112 * 2)


def test_transposed_convolutions_are_input_gradients() -> None:
    x, weight, out = t(8, 64, 16, 16), t(64, 32, 4, 4), t(8, 32, 32, 32)
    settings = ((2, 2), (1, 1), (1, 1), True, (0, 0), 1)
    kernel = only(op("aten.convolution.default", (x, weight, None, *settings), out))
    assert isinstance(kernel, Convolution)
    assert (kernel.pass_, kernel.in_size, kernel.out_size) == ("dgrad", (32, 32), (16, 16))
    assert (kernel.in_channels, kernel.out_channels) == (32, 64)


def test_fp32_convolutions_round_and_remember_the_memory_format() -> None:
    x = t(8, 3, 8, 8, dtype="float32", strides=(192, 1, 24, 3))
    weight = t(4, 3, 1, 1, dtype="float32")
    settings = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    kernel = only(op("aten.convolution.default", (x, weight, None, *settings), t(8, 4, 8, 8)))
    assert isinstance(kernel, Convolution)
    assert (kernel.dtype, kernel.channels_last) == ("tf32", True)
