"""Convolutions and the passes of their gradients."""

from __future__ import annotations

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Convolution, Kernel, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.lowering.lowered import FREE, Lowered
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import (
    elements,
    flag,
    integers,
    moved,
    precision,
    short_name,
    tensor,
    touched_bytes,
)

RULE = "convolution"
# The pass that a transposed convolution's forward and backward products are.
_MIRRORED = {"fwd": "dgrad", "dgrad": "fwd", "wgrad": "wgrad"}


def forward(op: Op) -> Lowered:
    """``convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups)``. cuDNN's kernel adds no bias: PyTorch adds it in one of its own."""
    kernels: list[Kernel] = [*_passes(op, 0, op.outputs[0], ("fwd",), 3)]
    if kernels and len(op.inputs) > 2 and isinstance(op.inputs[2], TensorSpec):
        kernels.append(Streaming("bias_add", "elementwise", 2 * moved(op.outputs)))
    return Lowered(tuple(kernels), RULE) if kernels else FREE


def backward(op: Op) -> Lowered:
    """``convolution_backward(grad, x, weight, bias_sizes, stride, ..., groups, mask)``: the
    gradients that ``mask`` asks for."""
    mask = op.inputs[10] if len(op.inputs) > 10 else (True, True, False)
    if not isinstance(mask, tuple) or len(mask) != 3:
        place = f"trace.op[{op.name}].inputs[10]"
        raise InputError(place, mask, "is no mask of gradients", "three booleans")
    wanted = [pass_ for pass_, asked in zip(("dgrad", "wgrad"), mask, strict=False) if asked]
    gradient = tensor(op, 0)
    kernels: list[Kernel] = [*_passes(op, 1, gradient, tuple(wanted), 4)]
    if mask[2] and elements(gradient):
        kernels.append(Streaming("bias_grad", "reduce", touched_bytes(gradient)))
    return Lowered(tuple(kernels), RULE) if kernels else FREE


def _passes(
    op: Op, first: int, output: TensorSpec, passes: tuple[str, ...], settings_at: int
) -> list[Convolution]:
    """The passes of one convolution; its input and weight are arguments ``first`` and the next,
    ``output`` has the shape of its result."""
    x, weight = tensor(op, first), tensor(op, first + 1)
    axes = len(x.shape) - 2
    stride = integers(op, settings_at, axes, 1)
    padding = integers(op, settings_at + 1, axes)
    dilation = integers(op, settings_at + 2, axes, 1)
    transposed = flag(op, settings_at + 3)
    groups = op.inputs[settings_at + 5] if len(op.inputs) > settings_at + 5 else 1
    if not isinstance(groups, int) or axes < 1 or len(weight.shape) != len(x.shape):
        raise InputError(f"trace.op[{op.name}].inputs", x.shape, "is no convolution's input")
    if not (elements(x) and elements(output) and elements(weight)):
        return []
    # A transposed convolution is the input gradient of one that goes the other way.
    small, large = (x, output) if transposed else (output, x)
    return [
        Convolution(
            short_name(op),
            batch=large.shape[0],
            in_channels=large.shape[1],
            out_channels=small.shape[1],
            in_size=large.shape[2:],
            kernel=weight.shape[2:],
            # cuDNN rounds fp32 operands to tf32 unless told not to.
            dtype="tf32" if x.dtype == "float32" else precision(x),
            pass_=_MIRRORED[pass_] if transposed else pass_,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            channels_last=_channels_last(x) or _channels_last(weight),
        )
        for pass_ in passes
    ]


def _channels_last(spec: TensorSpec) -> bool:
    return spec.strides is not None and spec.shape[1] > 1 and spec.strides[1] == 1


TABLE = {
    "aten.convolution": forward,
    "aten._convolution": forward,
    "aten.conv1d": forward,
    "aten.conv2d": forward,
    "aten.conv3d": forward,
    "aten.cudnn_convolution": forward,
    "aten.convolution_backward": backward,
}
