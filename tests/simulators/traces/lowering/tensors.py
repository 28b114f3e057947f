"""Short ways to write traced tensors and operations."""

from __future__ import annotations

from simulators.traces.events import Argument, Op, TensorSpec


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
