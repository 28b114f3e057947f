"""cuDNN's recurrent layers: a product for all steps' inputs, then one with the state at each step.

That is cuDNN's standard algorithm; where its persistent kernels hold the weights on chip, a step
is quicker. What each cell computes from its gates is a kernel of its own at every step.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, Kernel, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.lowering.lowered import FREE, Lowered
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import (
    elements,
    precision,
    short_name,
    tensor,
)
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes, tensors

RULE = "recurrent"
_BACKWARD_ARGUMENTS_MORE = 4


def forward(op: Op) -> Lowered:
    """``_cudnn_rnn(x, weights, stride, buffer, state, cell, mode, hidden, projected, layers,
    batch_first, dropout, train, bidirectional, batch_sizes, dropout_state)``."""
    return _lowered(op, 0, 1)


def backward(op: Op) -> Lowered:
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
    return Lowered(tuple(kernels), RULE, estimated=True)


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
    # cuDNN rounds fp32 operands to tf32 unless told not to.
    dtype = "tf32" if x.dtype == "float32" else precision(x)
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


TABLE = {"aten._cudnn_rnn": forward, "aten._cudnn_rnn_backward": backward}
