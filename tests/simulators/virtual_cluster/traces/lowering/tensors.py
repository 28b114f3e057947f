"""Short ways to write traced tensors and operations, and to read what they become."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import Kernel, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Argument, Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower


def t(
    *shape: int,
    dtype: str = "bfloat16",
    storage: int | None = 1,
    strides: tuple[int, ...] | None = None,
) -> TensorSpec:
    return TensorSpec(dtype, shape, storage, strides)


def transposed(spec: TensorSpec) -> TensorSpec:
    """The last two dimensions swapped, the data where it was."""
    *batch, rows, columns = spec.shape
    strides = [1, columns]
    for length in reversed([*batch[1:], rows * columns] if batch else []):
        strides.insert(0, length * (strides[0] if len(strides) > 2 else 1))
    return TensorSpec(
        spec.dtype, (*batch, columns, rows), spec.storage, tuple(strides[-len(spec.shape) :])
    )


def op(name: str, inputs: tuple[Argument, ...], *outputs: TensorSpec, stream: int = 0) -> Op:
    return Op(name, inputs, outputs, stream)


def only(lowered_op: Op) -> Kernel:
    """The one kernel of an operation."""
    kernels = lower(lowered_op).kernels
    assert len(kernels) == 1
    return kernels[0]


def moved(lowered_op: Op) -> int:
    """Bytes that an operation's kernels move."""
    kernels = lower(lowered_op).kernels
    assert all(isinstance(kernel, Streaming) for kernel in kernels)
    return sum(kernel.bytes for kernel in kernels if isinstance(kernel, Streaming))
