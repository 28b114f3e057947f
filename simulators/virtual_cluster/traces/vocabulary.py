"""The emulated vendor kernels a trace may name, what each argument is, and what it stands for.

An operation ``emulated.<kernel>`` is one call into a library of fused kernels (Transformer Engine,
Apex, flash-attn, grouped_gemm, Megatron's extensions). The table (``KERNELS``) is the definition:
emulation registers exactly these kernels, with these signatures, and readers name arguments by
it. Reading a trace needs no torch; ``schema`` is nevertheless written as torch's dispatcher reads
it, where ``Tensor(a!)`` is written as well as read.

What an operation is on the device, by ``stands_for``:

``gemm``
    ``C[m, n] = L R``, where ``m, n`` is the shape of what is written (``out`` or the first output)
    and ``k`` is contracted. ``layout`` is that of the call: TN ``L[m, k] R[n, k]``, NN
    ``L[m, k] R[k, n]``, NT ``L[k, m] R[k, n]``; leading dimensions of L (TN, NN) or of both (NT)
    are flattened. ``use`` says what it computes: forward, dgrad, wgrad, other. 8-bit operands on
    Hopper are always called TN, on transposed copies; ``use`` distinguishes the passes there.
    ``accumulate`` adds to ``out``. ``recipe`` is empty unless operands are quantised.
``grouped_gemm``
    One product for each of ``splits``, by rows of ``left`` (and, NT, of ``right``), each operand
    being one tensor for all groups or a list of one for each. ``one_kernel``: a grouped kernel
    rather than one launch after another on a few streams.
``attention_fwd``, ``attention_bwd``
    Fused attention, ``layout`` one of sbhd, bshd (4 dimensions, so named) and thd (packed tokens,
    heads, width). Keys may have fewer heads. ``sequences`` are packed or batched, of up to
    ``max_q``/``max_k`` tokens. ``mask`` is causal, causal_bottom_right (aligned at the last token
    when lengths differ), none or arbitrary; ``window`` limits how far left and right a token looks
    (-1: no limit). ``kernel`` is flash2, flash3 or cudnn.
anything else
    A memory-bound kernel of that class of ``workload.ir.Streaming``. Unless said otherwise it
    reads each tensor argument once and writes each output once; what it changes in place it does
    both: ``moved_bytes`` counts so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError

from .events import Argument, Op, TensorSpec


@dataclass(frozen=True)
class Kernel:
    """One emulated kernel.

    ``schema`` is ``name(arguments) -> outputs``; ``launches`` how many kernels really run for one
    call (multi-tensor kernels: per launch of theirs); ``outputs`` and ``note`` are for readers.
    ``read`` names tensors that are not read once, and how often they are, in ``moved_bytes``.
    """

    schema: str
    stands_for: str
    outputs: tuple[str, ...]
    launches: int = 1
    note: str = ""
    read: Mapping[str, int] | None = None

    @cached_property
    def name(self) -> str:
        return self.schema.partition("(")[0]

    @cached_property
    def arguments(self) -> dict[str, bool]:
        """Names of the arguments, in the order of ``Op.inputs``, and whether they are written."""
        inside = self.schema.partition("(")[2].rpartition(") ->")[0]
        # Annotations such as (a!) hold no commas, so arguments are what commas separate.
        parts = [part for part in inside.split(",") if part.strip()]
        return {part.split()[-1]: bool(re.search(r"\(\w!\)", part)) for part in parts}


_TABLE: list[dict[str, Any]] = read_yaml(Path(__file__).with_name("emulated_kernels.yaml"))
KERNELS: Mapping[str, Kernel] = {
    kernel.name: kernel
    for kernel in (Kernel(**{**row, "outputs": tuple(row.get("outputs", ()))}) for row in _TABLE)
}


NAMESPACE = "emulated"
# Argument of a copy from or to memory of the host that is not pinned.
PAGEABLE = "pageable"
# Bytes an element of torch's types takes; those of less than a byte take one, or hold two.
DTYPE_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "qint8", "quint8", "quint4x2", "quint2x4"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("bits1x8", "bits2x4", "bits4x2", "bits8"), 1),
    **{f"{kind}{bits}": 1 for kind in ("int", "uint") for bits in range(1, 8)},
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16", "bits16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32", "qint32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
# As PyTorch's profiler and execution traces name them; of two names the first is written.
C_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "bool": "bool", "unsigned char": "uint8", "signed char": "int8", "short int": "int16",
    "short": "int16", "int": "int32", "long int": "int64", "long": "int64",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
# Multi-tensor kernels take so many tensors a launch, by the number of lists they walk together,
# and so many chunks of so many elements (Apex, csrc/multi_tensor_apply.cuh, and PyTorch,
# MultiTensorApply.cuh; fused optimizers of both libraries call it with these chunks).
_TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_CHUNKS_PER_LAUNCH = 320
_CHUNK_ELEMENTS = 2048 * 32


def kernel_of(op: Op) -> Kernel:
    """What ``emulated.<kernel>`` or ``emulated.<kernel>.default`` is.

    Raises:
        InputError: another operation, or an emulated kernel this version does not know.
    """
    namespace, _, rest = op.name.partition(".")
    kernel = KERNELS.get(rest.removesuffix(".default")) if namespace == NAMESPACE else None
    if kernel is None:
        raise InputError("trace.op.name", op.name, "is no known emulated kernel", KERNELS)
    return kernel


def arguments(op: Op) -> dict[str, Argument]:
    """The arguments of an emulated kernel by name.

    Raises:
        InputError: it is no emulated kernel, or has another number of arguments.
    """
    kernel = kernel_of(op)
    if len(op.inputs) != len(kernel.arguments):
        raise InputError(
            f"trace.op[{op.name}].inputs",
            len(op.inputs),
            "is not how many arguments it takes",
            f"{len(kernel.arguments)}: {', '.join(kernel.arguments)}",
        )
    return dict(zip(kernel.arguments, op.inputs, strict=True))


def tensors(argument: Argument) -> Iterator[TensorSpec]:
    """The tensors in an argument: itself, those of a list, or none."""
    if isinstance(argument, TensorSpec):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from tensors(item)


def item_bytes(tensor: TensorSpec) -> int:
    """Bytes of one element.

    Raises:
        InputError: its dtype is not known.
    """
    if tensor.dtype not in DTYPE_BYTES:
        raise InputError("trace.tensor.dtype", tensor.dtype, "is not known", DTYPE_BYTES)
    return DTYPE_BYTES[tensor.dtype]


def tensor_bytes(tensor: TensorSpec) -> int:
    """Bytes of a tensor's elements; raises as ``item_bytes``."""
    return math.prod(tensor.shape) * item_bytes(tensor)


def moved_bytes(op: Op) -> int:
    """Bytes a memory-bound emulated kernel reads plus writes."""
    kernel = kernel_of(op)
    total = sum(tensor_bytes(tensor) for tensor in op.outputs)
    for name, argument in arguments(op).items():
        size = sum(tensor_bytes(tensor) for tensor in tensors(argument))
        total += size * (kernel.read or {}).get(name, 1)
        if kernel.arguments[name]:
            total += size
    return total


def launches(op: Op) -> int:
    """How many kernels a memory-bound emulated operation really launches."""
    kernel = kernel_of(op)
    if not kernel.name.startswith("multi_tensor"):
        return kernel.launches
    lists = [list(tensors(argument)) for argument in op.inputs if isinstance(argument, tuple)]
    walked = [each for each in lists if each]
    if not walked:
        return 0
    return launches_over_lists(walked) + (kernel.name == "multi_tensor_l2norm")


def launches_over_lists(lists: Sequence[Sequence[TensorSpec]]) -> int:
    """How many kernels walk lists of tensors together, of which the first decides."""
    first = lists[0]
    chunks = sum(math.ceil(math.prod(each.shape) / _CHUNK_ELEMENTS) for each in first)
    tensors_a_launch = _TENSORS_PER_LAUNCH[min(len(_TENSORS_PER_LAUNCH), len(lists))]
    most = max(math.ceil(chunks / _CHUNKS_PER_LAUNCH), math.ceil(len(first) / tensors_a_launch))
    return max(most, 1)
