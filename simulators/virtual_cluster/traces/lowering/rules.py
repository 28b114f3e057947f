"""From the name of an operation to the rule that turns it into kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from trainscout.simulators.virtual_cluster.traces.events import Argument, Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import NAMESPACE, tensors

from . import attention, convolution, factorisations, matmul, movement, normalisation
from .movement import foreach, is_list_operation
from .pointwise import NAMES, elementwise, unknown
from .tensors import FREE, Lowered, base_name
from .vendor import lower_vendor

# Views, allocations, bookkeeping: no kernel.
_FREE_WORDS = """
    alias as_strided as_strided_ chunk detach detach_ diagonal empty empty_like empty_strided
    empty_permuted empty_quantized new_empty new_empty_strided expand expand_as flatten
    lift lift_fresh movedim narrow permute ravel real imag _conj _neg_view view_as_real
    view_as_complex reshape _reshape_alias view_as resize_ resize_as_ select set_ slice split
    split_with_sizes squeeze squeeze_ swapaxes t t_ transpose transpose_ unbind unflatten unfold
    unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view _unsafe_view
    _local_scalar_dense item is_nonzero is_pinned _pin_memory record_stream is_same_size size
    stride numel dim storage_offset sym_size sym_stride sym_numel sym_storage_offset
    is_contiguous _has_compatible_shallow_copy_type _assert_async _assert_scalar requires_grad_
    _assert_tensor_metadata _lazy_clone
    _version _efficientzerotensor sparse_dim dense_dim retain_grad is_floating_point
    _nested_tensor_from_mask_left_aligned _fw_primal _make_dual _unpack_dual
    _has_same_storage_numel
"""
_FREE_NAMES = frozenset(_FREE_WORDS.split())
# What these name reaches the trace as events of its own, or is no device operation.
_FREE_NAMESPACES = frozenset({"prim", "c10d", "_c10d_functional", "_dtensor", "profiler"})

RULES: Mapping[str, Callable[[Op], Lowered]] = MappingProxyType(
    {
        **matmul.TABLE,
        **attention.TABLE,
        **convolution.TABLE,
        **factorisations.TABLE,
        **normalisation.TABLE,
        **movement.TABLE,
    }
)


def lower(op: Op) -> Lowered:
    """The kernels of one operation on its own.

    Depends on names, shapes, dtypes and strides, and on nothing else: equal operations on
    different storages are computed once.

    Raises:
        InputError: when the operation's arguments are not what its name promises.
    """
    op = _with_results(op)
    key = (op.name, tuple([_key(each) for each in op.inputs]), tuple(map(_key, op.outputs)))
    found = _LOWERED.get(key)
    if found is None:
        if len(_LOWERED) >= _LOWERED_LIMIT:
            _LOWERED.clear()
        found = _LOWERED[key] = _lower(op)
    return found


def _with_results(op: Op) -> Op:
    """The operation with tensors it was told to write (``out=``) as what it writes."""
    outs = [each for each in op.inputs if isinstance(each, tuple) and each[:1] == ("out",)]
    if not outs:
        return op
    inputs = tuple(each for each in op.inputs if each not in outs)
    return Op(op.name, inputs, op.outputs or tuple(tensors(outs[0])), op.stream, op.site)


_LOWERED: dict[tuple[object, ...], Lowered] = {}
_LOWERED_LIMIT = 100_000


def _key(argument: Argument) -> object:
    if isinstance(argument, TensorSpec):
        return argument.dtype, argument.shape, argument.storage is None, argument.strides
    if isinstance(argument, tuple):
        return tuple([_key(each) for each in argument])
    # True, 1 and 1.0 are equal but not the same argument.
    return argument if isinstance(argument, str) else (type(argument), argument)


def _lower(op: Op) -> Lowered:
    base = base_name(op.name)
    namespace, _, name = base.partition(".")
    if namespace == NAMESPACE:
        return lower_vendor(op)
    rule = RULES.get(base) or RULES.get(base.removesuffix("_"))
    if rule is not None:
        return rule(op)
    if name in _FREE_NAMES or namespace in _FREE_NAMESPACES:
        return FREE
    if is_list_operation(base):
        return foreach(op)
    if name in NAMES or (name.endswith("_") and name.removesuffix("_") in NAMES):
        return elementwise(op)
    return unknown(op)
