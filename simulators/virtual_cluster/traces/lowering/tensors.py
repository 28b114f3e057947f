"""Traced operations: what they amount to on a device, bytes and precision of their tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.priced import launches_of
from trainscout.simulators.predictor.workload.ir import Kernel
from trainscout.simulators.virtual_cluster.traces.events import Argument, Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes, tensors


@dataclass(frozen=True, slots=True)
class Lowered:
    """Kernels of one operation, in launch order; none for views and what only allocates.

    ``rule`` names what turned the operation into kernels, for reports of coverage. ``estimated``:
    the operation is not one whose cost is known; it was taken to be memory-bound. Besides the
    kernels ``transfer_bytes`` cross the bus between host and device, ``pageable_bytes`` of them
    from or to memory that is not pinned. ``one_call``: a library launches all of them, as fast as
    they run.
    """

    kernels: tuple[Kernel, ...]
    rule: str
    estimated: bool = False
    transfer_bytes: int = 0
    pageable_bytes: int = 0
    one_call: bool = False

    @property
    def launches(self) -> int:
        """How often the host launches for it."""
        if self.one_call:
            return 1
        return sum(map(launches_of, self.kernels)) + (self.transfer_bytes > 0)


FREE = Lowered((), "free")


# Bytes, precision and memory layout of traced tensors, and arguments by position.

# Arithmetic by operand type. PyTorch multiplies fp32 matrices in full precision unless told
# otherwise, which a traced product says of itself (``allow_tf32``); 64-bit has no rate declared.
PRECISION = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp32",
    "complex64": "fp32",
    "complex128": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "int8": "fp8",
    "uint8": "fp8",
    "float4_e2m1fn_x2": "fp4",
}
# Device memory is read in sectors of this size.
SECTOR_BYTES = 32


def precision(spec: TensorSpec) -> str:
    """The arithmetic a product of such tensors runs in.

    Raises:
        InputError: for a dtype no product has.
    """
    if spec.dtype not in PRECISION:
        problem = "has no matrix products"
        raise InputError("trace.tensor.dtype", spec.dtype, problem, PRECISION)
    return PRECISION[spec.dtype]


def contracted(spec: TensorSpec, size: int) -> int:
    """How many numbers lie along a contracted dimension: those of four bits are two an element."""
    return size * (2 if precision(spec) == "fp4" else 1)


def elements(spec: TensorSpec) -> int:
    return math.prod(spec.shape)


def touched_bytes(spec: TensorSpec) -> int:
    """Bytes of device memory that going over a tensor once moves.

    Broadcast dimensions (stride 0) are read once. Elements that do not lie side by side cost a
    sector each, but never more than the stretch of memory they lie in.
    """
    if spec.storage is None:
        return 0
    size = item_bytes(spec)
    if spec.strides is None:
        return elements(spec) * size
    dims = [
        (length, stride)
        for length, stride in zip(spec.shape, spec.strides, strict=True)
        if length != 1 and stride != 0
    ]
    if any(length == 0 for length in spec.shape):
        return 0
    count = math.prod(length for length, _ in dims)
    span = 1 + sum((length - 1) * stride for length, stride in dims)
    closest = min((stride for _, stride in dims), default=1)
    each = min(closest * size, max(size, SECTOR_BYTES))
    return max(count * size, min(count * each, span * size)) if closest > 1 else count * size


def channels_last(spec: TensorSpec) -> bool:
    """Whether the channels of a batch lie side by side."""
    return spec.strides is not None and spec.shape[1] > 1 and spec.strides[1] == 1


def on_device(argument: Argument) -> list[TensorSpec]:
    """The tensors in an argument that lie in device memory."""
    return [spec for spec in tensors(argument) if spec.storage is not None]


def moved(specs: Iterable[TensorSpec]) -> int:
    return sum(touched_bytes(spec) for spec in specs)


def tensor(op: Op, index: int) -> TensorSpec:
    """The argument ``index``, which has to be a tensor.

    Raises:
        InputError: naming the operation.
    """
    found = op.inputs[index] if index < len(op.inputs) else None
    if not isinstance(found, TensorSpec):
        raise InputError(f"trace.op[{op.name}].inputs[{index}]", found, "is no tensor")
    return found


def integers(op: Op, index: int, length: int, default: int = 0) -> tuple[int, ...]:
    """A list of sizes; one entry stands for all ``length``, none for the default.

    Raises:
        InputError: when it has another length or other content.
    """
    argument = op.inputs[index] if index < len(op.inputs) else None
    if argument is None:
        return (default,) * length
    values = argument if isinstance(argument, tuple) else (argument,)
    if len(values) == 1:
        values = values * length
    if not values:
        return (default,) * length
    if len(values) != length or not all(isinstance(value, int) for value in values):
        place = f"trace.op[{op.name}].inputs[{index}]"
        raise InputError(place, argument, "is not a list of sizes", f"1 or {length} integers")
    return values  # type: ignore[return-value]


def flag(op: Op, index: int, default: bool = False) -> bool:
    """A boolean argument, its default when it was not given."""
    flag = op.inputs[index] if index < len(op.inputs) else default
    return flag if isinstance(flag, bool) else default


def keyword(op: Op, name: str) -> Argument:
    """What was passed by keyword: traces have such arguments last, as pairs of name and value."""
    for argument in op.inputs:
        if isinstance(argument, tuple) and len(argument) == 2 and argument[0] == name:
            return argument[1]
    return None


def base_name(name: str) -> str:
    """``aten.mm`` of ``aten.mm.default``."""
    namespace, _, rest = name.partition(".")
    return f"{namespace}.{rest.partition('.')[0]}"


def in_place(op: Op) -> bool:
    """Whether the operation writes its first argument, by the dispatcher's convention."""
    base = base_name(op.name)
    return base.endswith("_") and not base.endswith("__")


def short_name(op: Op) -> str:
    """What kernels made of an operation are called."""
    return base_name(op.name).partition(".")[2]


def named(rule: Callable[[Op], Lowered], names: str) -> dict[str, Callable[[Op], Lowered]]:
    """A rule for PyTorch's own operations of these names."""
    return {f"aten.{name}": rule for name in names.split()}
