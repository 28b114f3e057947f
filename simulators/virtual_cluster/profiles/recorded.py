"""What a recorded operation amounts to on a device: PyTorch's call as the kernels that are priced.

Profilers record inputs only. What elementwise operations, norms and softmaxes write is as large
as their inputs broadcast against each other; reductions write next to nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, Kernel
from trainscout.simulators.virtual_cluster.traces.events import Argument, Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.kineto import RecordedOperation
from trainscout.simulators.virtual_cluster.traces.lowering.pointwise import NAMES, UNKNOWN_RULE
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import (
    PRECISION,
    integers,
    tensor,
)
from trainscout.simulators.virtual_cluster.traces.vocabulary import C_DTYPES

# C++ names of element types, as the profiler writes them.
_COMPARISONS = frozenset([
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and",
])  # fmt: skip
_SAME_SHAPE = NAMES | frozenset([
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_batch_norm",
    "native_batch_norm_backward", "_fused_rms_norm", "rms_norm", "layer_norm", "_softmax",
    "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_dropout",
    "index_select",
])  # fmt: skip
# Where these take (stride, padding, dilation, groups); ``convolution`` has them after the bias.
_CONVOLUTIONS = {"cudnn_convolution": (3, 2, 4, 5), "miopen_convolution": (4, 3, 5, 6)}
# Longer than any dimension that libraries take.
LARGEST = 1 << 40
# Every storage is on the device: which one it is makes no difference to a price.
_DEVICE = 0


def kernels_of(recorded: RecordedOperation) -> tuple[Kernel, ...]:
    """The kernels of an operation, in launch order; none where its shapes were not recorded, or
    nothing is known of it but its bytes."""
    try:
        op = _as_op(recorded)
        if op is None:
            return ()
        lowered = lower(op)
    except (InputError, IndexError, ValueError, TypeError, ArithmeticError):
        return ()  # not recorded as its name promises: compared by class only
    return () if lowered.rule == UNKNOWN_RULE else lowered.kernels


def product_of(recorded: RecordedOperation) -> tuple[Kernel, ...]:
    """The forward product of a vendor's linear module (``_Linear``, ``_LayerNormLinear``): of the
    first tensor with the one weight that fits it. None for gradients, which do not name theirs,
    and modules of several products."""
    arguments = [_argument(recorded, place) for place in range(len(recorded.dtypes))]
    tensors = [each for each in arguments if isinstance(each, TensorSpec) and len(each.shape) > 1]
    if not tensors or "backward" in recorded.name.lower():
        return ()
    x, width = tensors[0], tensors[0].shape[-1]
    weights = [each.shape for each in tensors[1:] if len(each.shape) == 2]
    rows = _elements(x.shape) // max(width, 1)
    if len(weights) != 1 or weights[0][1] != width or not 0 < rows < LARGEST:
        return ()
    dtype = PRECISION.get(x.dtype)
    return () if dtype is None else (Gemm(recorded.name, rows, weights[0][0], width, dtype),)


def _as_op(recorded: RecordedOperation) -> Op | None:
    namespace, _, name = recorded.name.partition("::")
    shapes = [*recorded.shapes, *(shape for each in recorded.lists.values() for shape in each)]
    sizes = all(0 <= length <= LARGEST for shape in shapes for length in shape)
    if namespace != "aten" or not recorded.shapes or not sizes:
        return None
    inputs = tuple([_argument(recorded, place) for place in range(len(recorded.dtypes))])
    if name in _CONVOLUTIONS:
        return _convolution(inputs, _CONVOLUTIONS[name])
    return Op(f"aten.{name}", inputs, _outputs(name, inputs), stream=0)


def _argument(recorded: RecordedOperation, place: int) -> Argument:
    kind = recorded.dtypes[place]
    if kind == "TensorList":
        # Element types of lists are not recorded: those of mixed-precision gradients.
        shapes = recorded.lists.get(place, ())
        return tuple([TensorSpec("bfloat16", shape, _DEVICE) for shape in shapes])
    if kind in C_DTYPES:
        shape = recorded.shapes[place] if place < len(recorded.shapes) else ()
        strides = recorded.strides[place] if place < len(recorded.strides) else ()
        plain = len(strides) != len(shape) or strides == _contiguous(shape)
        return TensorSpec(C_DTYPES[kind], shape, _DEVICE, None if plain else strides)
    return _value(recorded.values[place] if place < len(recorded.values) else "")


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(length, 1))
    return tuple(strides[::-1])


def _value(text: str) -> Argument:
    """``True``, ``559``, ``0.``, ``[1, 1]``, as the profiler writes what is no tensor."""
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"\[[^\[\]]{0,200}\]", text):
        return tuple([_value(each.strip()) for each in text[1:-1].split(",") if each.strip()])
    return None


def _outputs(name: str, inputs: tuple[Argument, ...]) -> tuple[TensorSpec, ...]:
    """What an operation writes, where that follows from what it reads."""
    operands = [each for each in inputs if isinstance(each, TensorSpec)]
    if name == "cat" and inputs and isinstance(inputs[0], tuple):
        return tuple([each for each in inputs[0] if isinstance(each, TensorSpec)])
    if name == "index_select" and len(operands) > 1:
        rows = operands[-1].shape
        return (replace(operands[0], shape=(*rows, *operands[0].shape[1:]), strides=None),)
    base = name.rstrip("_")
    if base not in _SAME_SHAPE or name != base or not operands:
        return ()
    shape = max((each.shape for each in operands), key=_elements)
    if base in NAMES:
        shape = _broadcast([each.shape for each in operands]) or shape
    dtype = "bool" if base in _COMPARISONS else operands[0].dtype
    # Results lie as what they are made of lies.
    alike = next((each.strides for each in operands if each.shape == shape), None)
    return (TensorSpec(dtype, shape, _DEVICE, None if alike and 0 in alike else alike),)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    axes = max(map(len, shapes))
    padded = [(1,) * (axes - len(shape)) + shape for shape in shapes]
    return tuple([max(lengths) for lengths in zip(*padded, strict=True)])


def _convolution(inputs: tuple[Argument, ...], places: tuple[int, int, int, int]) -> Op:
    """A library's convolution as ``aten::convolution``, which says the same in another order."""
    op = Op("aten.convolution", inputs, (), stream=0)
    x, weight = tensor(op, 0), tensor(op, 1)
    axes = len(x.shape) - 2
    stride, padding, dilation = (integers(op, place, axes) for place in places[:3])
    groups = integers(op, places[3], 1)[0]
    sizes = [
        (length + 2 * pad - apart * (taps - 1) - 1) // step + 1
        for length, taps, step, pad, apart in zip(
            x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
        )
    ]
    output = TensorSpec(x.dtype, (x.shape[0], weight.shape[0], *sizes), _DEVICE)
    arguments = (x, weight, None, stride, padding, dilation, False, (0,) * axes, groups)
    return Op("aten.convolution", arguments, (output,), stream=0)
