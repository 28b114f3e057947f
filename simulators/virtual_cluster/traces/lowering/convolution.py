"""cuDNN's convolutions and recurrent layers, and the passes of their gradients."""

from __future__ import annotations

from collections.abc import Iterator

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Convolution, Gemm, Kernel, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes, tensors

from .tensors import (
    FREE,
    Lowered,
    channels_last,
    elements,
    flag,
    integers,
    moved,
    named,
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
    wanted = [
        pass_ for pass_, requested in zip(("dgrad", "wgrad"), mask, strict=False) if requested
    ]
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
            dtype=_precision(x),
            pass_=_MIRRORED[pass_] if transposed else pass_,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            channels_last=channels_last(x) or channels_last(weight),
        )
        for pass_ in passes
    ]


def _precision(spec: TensorSpec) -> str:
    """cuDNN rounds fp32 operands to tf32 unless told not to."""
    return "tf32" if spec.dtype == "float32" else precision(spec)


# cuDNN's recurrent layers: a product for all steps' inputs, then one with the state at each step.
#
# That is cuDNN's standard algorithm; where its persistent kernels hold the weights on chip, a step
# is quicker. What each cell computes from its gates is a kernel of its own at every step. One call
# of the library launches all of them, without PyTorch's time for each.

RECURRENT_RULE = "recurrent"
_BACKWARD_ARGUMENTS_MORE = 4


def recurrent_forward(op: Op) -> Lowered:
    """``_cudnn_rnn(x, weights, stride, buffer, state, cell, mode, hidden, projected, layers,
    batch_first, dropout, train, bidirectional, batch_sizes, dropout_state)``."""
    return _lowered(op, 0, 1)


def recurrent_backward(op: Op) -> Lowered:
    """``_cudnn_rnn_backward``: gradients of output and states stand before ``mode``. Each product
    of the forward pass has one for its input and one for its weight; that of the state's weight is
    one for all steps."""
    return _lowered(op, _BACKWARD_ARGUMENTS_MORE, 2)


def _lowered(op: Op, shift: int, passes: int) -> Lowered:
    x, state = tensor(op, 0), tensor(op, 4)
    batch_first, sizes = op.inputs[10 + shift], op.inputs[14 + shift]
    if not isinstance(sizes, tuple):
        raise InputError(f"trace.op[{op.name}].inputs[{14 + shift}]", sizes, "is no list of sizes")
    batch = state.shape[1]
    steps = len(sizes) or x.shape[1 if batch_first else 0]
    tokens = elements(x) // x.shape[-1] if x.shape[-1] else 0
    if not (tokens and steps and batch):
        return FREE
    kernels: list[Kernel] = []
    for inputs, states in _pairs(op):
        kernels.extend(_layer(op, x, inputs, states, tokens, steps, passes == 2))
    return Lowered(tuple(kernels), RECURRENT_RULE, estimated=True, one_call=True)


def _pairs(op: Op) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """The weights of inputs and of states of each layer and direction."""
    weights = list(tensors(op.inputs[1]))
    each = op.inputs[2]
    if not isinstance(each, int) or each < 2:
        raise InputError(f"trace.op[{op.name}].inputs[2]", each, "is no number of weights")
    for at in range(0, len(weights), each):
        yield weights[at], weights[at + 1]


def _layer(
    op: Op,
    x: TensorSpec,
    inputs: TensorSpec,
    states: TensorSpec,
    tokens: int,
    steps: int,
    backward: bool,
) -> list[Kernel]:
    dtype = _precision(x)
    name = short_name(op)
    gates, width = inputs.shape
    state_width = states.shape[1]
    rows = max(1, tokens // steps)
    cells = Streaming(f"{name}_cells", "elementwise", 3 * tokens * gates * item_bytes(x), steps)
    if not backward:
        step = Gemm(f"{name}_step", rows, gates, state_width, dtype)
        return [Gemm(f"{name}_input", tokens, gates, width, dtype), *[step] * steps, cells]
    step = Gemm(f"{name}_step", rows, state_width, gates, dtype, layout="NN")
    return [
        *[step] * steps,
        cells,
        Gemm(f"{name}_input", tokens, width, gates, dtype, layout="NN"),
        Gemm(f"{name}_weight", gates, width, tokens, dtype, layout="NT"),
        Gemm(f"{name}_state_weight", gates, state_width, tokens, dtype, layout="NT"),
    ]


TABLE = {
    **named(forward, "convolution _convolution conv1d conv2d conv3d cudnn_convolution"),
    **named(backward, "convolution_backward"),
    **named(recurrent_forward, "_cudnn_rnn"),
    **named(recurrent_backward, "_cudnn_rnn_backward"),
}
