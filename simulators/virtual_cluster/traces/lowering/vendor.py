"""Kernels of vendor libraries (``emulated.*``), by ``traces.vocabulary``."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, GroupedGemm, Streaming
from trainscout.simulators.virtual_cluster.traces import vocabulary
from trainscout.simulators.virtual_cluster.traces.events import Argument, Op, TensorSpec

from .attention import attention, masked
from .tensors import FREE, Lowered, contracted, precision

# Layouts of the IR say which pass a product belongs to; calls on 8-bit operands do not.
_LAYOUT_OF_USE = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}
_ATTENTION_KERNELS = {"flash2": "flash2", "flash3": "flash", "cudnn": "flash"}


def lower_vendor(op: Op) -> Lowered:
    """An ``emulated`` operation.

    Raises:
        InputError: for a kernel or arguments the vocabulary does not have.
    """
    kernel = vocabulary.kernel_of(op)
    args = vocabulary.arguments(op)
    if kernel.stands_for == "gemm":
        return _gemm(kernel.name, args)
    if kernel.stands_for == "grouped_gemm":
        return _grouped(kernel.name, args)
    if kernel.stands_for.startswith("attention"):
        return _attention(kernel.name, args, kernel.stands_for.removeprefix("attention_"))
    count, total = vocabulary.launches(op), vocabulary.moved_bytes(op)
    if not count or not total:
        return FREE
    stands_for = "cast_fp4" if args.get("recipe") == "nvfp4" else kernel.stands_for
    made = Streaming(kernel.name, stands_for, total, count)
    return Lowered((made,), f"vendor {stands_for}")


def _gemm(name: str, args: dict[str, Argument]) -> Lowered:
    left, right = _tensor(name, args, "left"), _tensor(name, args, "right")
    m, n, k = _sizes(left, right, str(args["layout"]))
    if not (m and n and k):
        return FREE
    made = Gemm(
        name,
        m,
        n,
        contracted(left, k),
        precision(left),
        layout=_LAYOUT_OF_USE.get(str(args["use"]), str(args["layout"])),
        accumulate=_sum_bytes(args),
    )
    return Lowered((made,), "vendor gemm")


def _sum_bytes(args: dict[str, Argument]) -> int:
    """Bytes an element of what a product is added into; 0: it is written."""
    added = args.get("accumulate", False)
    return vocabulary.item_bytes(next(vocabulary.tensors(args["out"]))) if added else 0


def _sizes(left: TensorSpec, right: TensorSpec, layout: str) -> tuple[int, int, int]:
    """m, n, k of ``left`` times ``right`` as they are laid out."""
    if layout == "NT":
        return left.shape[-1], right.shape[-1], math.prod(left.shape[:-1])
    n = right.shape[-2] if layout == "TN" else right.shape[-1]
    if layout == "TN" and len(right.shape) != 2:
        n = math.prod(right.shape[:-1])
    return math.prod(left.shape[:-1]), n, left.shape[-1]


def _grouped(name: str, args: dict[str, Argument]) -> Lowered:
    left = list(vocabulary.tensors(args["left"]))
    right = list(vocabulary.tensors(args["right"]))
    splits = args["splits"]
    if not left or not right or not isinstance(splits, tuple):
        raise InputError(f"trace.op[{name}].inputs", args, "is no grouped product")
    sizes = [size for size in splits if isinstance(size, int) and size]
    rows, groups = sum(sizes), len(sizes)
    layout, use = str(args["layout"]), str(args["use"])
    a, b = left[0].shape, right[0].shape
    if layout == "NT":
        n, k = a[-1], b[-1]
    elif use == "wgrad":
        # On transposed copies, rows are what is contracted.
        n, k = a[-2], b[-2]
    else:
        k = a[-1]
        n = b[-2] if layout == "TN" else b[-1]
    if not (rows and n and k):
        return FREE
    # Groups share one size in the IR: as many products over as many rows, each of the mean.
    made = GroupedGemm(
        name,
        groups,
        -(-rows // groups),
        n,
        contracted(left[0], k),
        precision(left[0]),
        layout=_LAYOUT_OF_USE.get(use, layout),
        accumulate=_sum_bytes(args),
        one_kernel=bool(args["one_kernel"]),
    )
    return Lowered((made,), "vendor grouped_gemm")


def _attention(name: str, args: dict[str, Argument], pass_: str) -> Lowered:
    query, key = _tensor(name, args, "query"), _tensor(name, args, "key")
    value = _tensor(name, args, "value")
    layout = str(args["layout"])
    heads, kv_heads = query.shape[-2], key.shape[-2]
    sequences = _integer(name, args, "sequences")
    if layout == "thd":
        longest_q, longest_k = _integer(name, args, "max_q"), _integer(name, args, "max_k")
        seq_q = min(query.shape[0], longest_q) or query.shape[0]
        seq_k = min(key.shape[0], longest_k) or key.shape[0]
        # Sequences of unequal length cost what so many of the longest would, in tokens.
        sequences = max(1, round(query.shape[0] / max(1, seq_q)))
    else:
        at, batch_at = (0, 1) if layout == "sbhd" else (1, 0)
        seq_q, seq_k, sequences = query.shape[at], key.shape[at], query.shape[batch_at]
    causal, seq_k = masked(str(args["mask"]), args["window"], seq_q, seq_k)
    kernel = _ATTENTION_KERNELS.get(str(args["kernel"]))
    if kernel is None:
        place = f"trace.op[{name}].kernel"
        raise InputError(place, args["kernel"], "is not known", _ATTENTION_KERNELS)
    shapes = (
        (sequences, heads, seq_q, query.shape[-1]),
        (sequences, kv_heads, seq_k, query.shape[-1]),
        (sequences, kv_heads, seq_k, value.shape[-1]),
    )
    return attention(name, shapes, causal, pass_, precision(query), kernel, "vendor attention")


def _tensor(name: str, args: dict[str, Argument], which: str) -> TensorSpec:
    found = args[which]
    if not isinstance(found, TensorSpec):
        raise InputError(f"trace.op[{name}].{which}", found, "is no tensor")
    return found


def _integer(name: str, args: dict[str, Argument], which: str) -> int:
    found = args[which]
    if not isinstance(found, int):
        raise InputError(f"trace.op[{name}].{which}", found, "is no integer")
    return found
