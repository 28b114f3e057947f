"""What moves or makes data: copies, casts, fills, joins, gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import (
    PAGEABLE,
    item_bytes,
    launches_over_lists,
)

from .normalisation import once, streaming
from .tensors import (
    FREE,
    Lowered,
    elements,
    in_place,
    keyword,
    moved,
    named,
    on_device,
    short_name,
    tensor,
    touched_bytes,
)

# Operations on lists of tensors: fused and foreach optimizers, unscaling, norms, copies.

RULE = "multi_tensor"
# Operations that write lists besides the first: how many of the first lists.
_WRITTEN_LISTS = {
    "_fused_adam_": 4,
    "_fused_adamw_": 4,
    "_fused_sgd_": 3,
    "_fused_adagrad_": 3,
    "_amp_foreach_non_finite_check_and_unscale_": 1,
}
# What they read although it is written: gradients of fused optimizers are read only.
_READ_ONLY = {"_fused_adam_": (1,), "_fused_adamw_": (1,), "_fused_sgd_": (1,)}


def foreach(op: Op) -> Lowered:
    """One call over lists: all of them read, those it changes (or returns) written."""
    name = short_name(op)
    lists = [on_device(argument) for argument in op.inputs if isinstance(argument, tuple)]
    lists = [each for each in lists if each]
    if not lists:
        return FREE
    copies = name == "_foreach_copy_"
    fills = name == "_foreach_zero_"
    read = sum(moved(each) for each in (lists[1:] if copies or fills else lists))
    if in_place(op):
        untouched = _READ_ONLY.get(name, ())
        written = sum(
            moved(each)
            for place, each in enumerate(lists[: _WRITTEN_LISTS.get(name, 1)])
            if place not in untouched
        )
    else:
        written = moved(op.outputs)
    kind = _kind(name, lists)
    count = launches(lists) + ("norm" in name)
    return Lowered((Streaming(name, kind, read + written, count),), RULE)


def launches(lists: list[list[TensorSpec]]) -> int:
    """Kernels that walk equally long lists together."""
    walked = [each for each in lists if len(each) == len(lists[0])]
    # Counters of steps are single numbers that no chunk is made of.
    walked = [each for each in walked if any(elements(spec) > 1 for spec in each)] or walked[:1]
    return launches_over_lists([lists[0], *walked[1:]])


def _kind(name: str, lists: list[list[TensorSpec]]) -> str:
    if name == "_foreach_copy_":
        pairs = zip(lists[0], lists[-1], strict=False)
        casts = any(target.dtype != source.dtype for target, source in pairs)
        return "cast" if casts else "memcpy"
    if "norm" in name or name == "_foreach_max":
        return "reduce"
    return "optimizer" if name.startswith("_fused") else "elementwise"


def update(op: Op) -> Lowered:
    """bitsandbytes' optimizers: all of a tensor read, and but for its gradient, which comes first,
    written."""
    read = on_device(op.inputs)
    return streaming(op, "optimizer", 2 * moved(read) - moved(read[:1]))


def is_list_operation(base: str) -> bool:
    """Whether an operation (``aten.name``) works on lists."""
    return base.startswith(("aten._foreach_", "aten._fused_ad", "aten._fused_sgd", "aten._amp_fo"))


# Digits of keys that a radix sort takes in one pass over keys and indices.
_RADIX_BITS = 8


def copy(op: Op) -> Lowered:
    """``copy_(to, from)``: between dtypes a cast, across the bus a transfer."""
    return _copied(op, tensor(op, 1), tensor(op, 0))


def clone(op: Op) -> Lowered:
    """``clone``, ``_to_copy``, ``contiguous``: one tensor into another, or to the host."""
    source = tensor(op, 0)
    # A trace may leave out what is not on the device.
    target = op.outputs[0] if op.outputs else replace(source, storage=None)
    return _copied(op, source, target)


def _copied(op: Op, source: TensorSpec, target: TensorSpec) -> Lowered:
    if source.storage is None and target.storage is None:
        return FREE
    if source.storage is None or target.storage is None:
        crossing = elements(source if target.storage is None else target)
        size = crossing * item_bytes(source)
        pageable = size if (PAGEABLE, True) in op.inputs else 0
        return Lowered((), "host_copy", transfer_bytes=size, pageable_bytes=pageable)
    written = touched_bytes(target)
    # A broadcast source is read once, but every element of the target is written.
    total = min(touched_bytes(source), elements(target) * item_bytes(source)) + written
    if source.dtype != target.dtype:
        return streaming(op, "cast", total)
    transposing = _transposed(source) != _transposed(target)
    return streaming(op, "permute" if transposing else "memcpy", total)


def _transposed(spec: TensorSpec) -> bool:
    """Whether neighbours in the last dimension are not neighbours in memory."""
    if spec.strides is None:
        return False
    inner = [
        stride for length, stride in zip(spec.shape, spec.strides, strict=True) if length != 1
    ]
    return bool(inner) and inner[-1] > 1


def fill(op: Op) -> Lowered:
    """Writes a tensor, its first argument (in place) or its output."""
    targets = on_device(op.inputs[:1]) if in_place(op) else list(op.outputs)
    return streaming(op, "elementwise", moved(targets))


def repeated(op: Op) -> Lowered:
    """Copies of one tensor in a larger one."""
    return streaming(op, "memcpy", moved(on_device(op.inputs[:1])) + moved(op.outputs))


def split_copy(op: Op) -> Lowered:
    """One tensor copied out into several (which may not be listed): ``split_with_sizes_copy``."""
    source = touched_bytes(tensor(op, 0))
    return streaming(op, "memcpy", 2 * source)


def gathered_in(op: Op) -> Lowered:
    """FSDP's copy of a shard's tensors into the buffer that is gathered."""
    sources = on_device(op.inputs[:1])
    return streaming(op, "memcpy", 2 * moved(sources), launches=max(1, len(sources) // 64))


def chunked(op: Op) -> Lowered:
    """``chunk_cat``: tensors cut and interleaved into one, which may be of another dtype."""
    sources = on_device(op.inputs[:1])
    targets = list(op.outputs)
    read = moved(sources)
    written = moved(targets[:1]) if targets else read
    cast = bool(targets) and bool(sources) and targets[0].dtype != sources[0].dtype
    return streaming(op, "cast" if cast else "memcpy", read + written)


def gathered(op: Op) -> Lowered:
    """Rows or elements picked by index: indices read, what is picked read and written."""
    indices = moved(on_device(op.inputs[1:]))
    return streaming(op, "permute", indices + 2 * moved(op.outputs))


def scattered(adds: bool, source_at: int) -> Callable[[Op], Lowered]:
    """A rule for writing values to indexed places; ``adds``: what was there is read too.

    Out of place, the whole tensor is copied first.
    """

    def rule(op: Op) -> Lowered:
        target = tensor(op, 0)
        source = op.inputs[source_at] if source_at < len(op.inputs) else None
        others = on_device(op.inputs[1:source_at] + op.inputs[source_at + 1 :])
        indices = moved(others)
        if isinstance(source, TensorSpec) and source.storage is not None:
            values = elements(source)
            read = touched_bytes(source)
        else:
            # One number goes to every place an index names.
            values = max((elements(spec) for spec in others), default=0)
            read = 0
        places = values * item_bytes(target)
        accumulates = adds or any(argument is True for argument in op.inputs[source_at:])
        accumulates = accumulates or keyword(op, "accumulate") is True
        total = indices + read + places * (2 if accumulates else 1)
        if in_place(op):
            return streaming(op, "permute", total)
        whole = 2 * touched_bytes(target)
        kernels = (
            Streaming(f"{short_name(op)}_copy", "memcpy", whole),
            Streaming(short_name(op), "permute", total),
        )
        return Lowered(kernels if total else kernels[:1], "permute") if whole else FREE

    return rule


def sort(op: Op) -> Lowered:
    """A radix sort: keys and indices read and written once for every digit, plus a histogram."""
    key = tensor(op, 0)
    passes = -(-item_bytes(key) * 8 // _RADIX_BITS)
    each = 2 * elements(key) * (item_bytes(key) + 8)
    total = passes * each + touched_bytes(key)
    if not elements(key):
        return FREE
    kernel = Streaming(short_name(op), "permute", total, launches=passes + 1)
    return Lowered((kernel,), "sort", estimated=True)


def top_k(op: Op) -> Lowered:
    """Selection reads its rows for the threshold and again to collect what passes it."""
    total = 2 * touched_bytes(tensor(op, 0)) + moved(op.outputs)
    if not total:
        return FREE
    kernel = Streaming(short_name(op), "reduce", total, launches=2)
    return Lowered((kernel,), "sort", estimated=True)


def counted(op: Op) -> Lowered:
    """Histograms: every index adds to a bin."""
    read = moved(on_device(op.inputs))
    return streaming(op, "reduce", 2 * read + moved(op.outputs), launches=2)


TABLE = {
    "bitsandbytes.optimizer_update_8bit_blockwise": update,
    "bitsandbytes.optimizer_update_32bit": update,
    **named(copy, "copy_ copy"),
    **named(
        clone,
        """clone _to_copy contiguous lift_fresh_copy to alias_copy as_strided_copy detach_copy
        diagonal_copy narrow_copy permute_copy select_copy slice_copy squeeze_copy t_copy
        transpose_copy unsqueeze_copy view_copy""",
    ),
    **named(
        fill,
        """zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full rand randn
        randint randperm rand_like randn_like randint_like normal arange range linspace eye
        zero_ fill_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ log_normal_
        cauchy_ zero scalar_tensor tril_indices triu_indices""",
    ),
    **named(
        once("memcpy"),
        "cat stack hstack vstack constant_pad_nd pad roll flip rot90 block_diag _pack",
    ),
    **named(repeated, "repeat repeat_interleave tile expand_copy pixel_shuffle pixel_unshuffle"),
    **named(split_copy, "split_with_sizes_copy split_copy unbind_copy"),
    **named(chunked, "_chunk_cat"),
    **named(
        gathered, "index index_select gather take take_along_dim _unsafe_index unfold_copy im2col"
    ),
    **named(scattered(False, 2), "index_put index_put_ _index_put_impl_ _unsafe_index_put"),
    **named(scattered(True, 3), "index_add index_add_ scatter_add scatter_add_ scatter_reduce"),
    **named(scattered(False, 3), "scatter scatter_ index_copy index_copy_ index_fill index_fill_"),
    **named(scattered(True, 3), "scatter_reduce_"),
    **named(scattered(False, 1), "slice_scatter select_scatter diagonal_scatter"),
    **named(sort, "sort argsort msort _unique2 unique_consecutive unique_dim"),
    **named(top_k, "topk kthvalue median"),
    # The mask is counted, then values read and written.
    **named(once("permute", launches=3), "masked_select nonzero nonzero_static masked_scatter"),
    **named(counted, "bincount histc searchsorted bucketize"),
    **named(
        once("reduce"),
        """sum mean amax amin max min prod norm linalg_vector_norm argmax argmin any all var std
        var_mean std_mean cumsum cumprod logsumexp logcumsumexp aminmax count_nonzero nansum trace
        _fft_r2c _fft_c2r _fft_c2c linalg_matrix_norm cummax cummin equal
        _is_all_true _is_any_true allclose dist multinomial mode""",
    ),
    "fsdp.all_gather_copy_in": gathered_in,
    "fsdp.split_with_sizes_copy": split_copy,
    "fsdp.chunk_cat": chunked,
}
