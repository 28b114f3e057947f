"""What each operation of the dispatcher is to the emulator: a view, a write, something new."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d

from trainscout.simulators.virtual_cluster.emulation.cuda.kernels import KERNELS_OF_CUDA
from trainscout.simulators.virtual_cluster.emulation.memory import (
    DeviceMemory,
    DeviceStorage,
    Parts,
)
from trainscout.simulators.virtual_cluster.emulation.stream_order import extent_of
from trainscout.simulators.virtual_cluster.traces.events import Argument, TensorSpec
from trainscout.simulators.virtual_cluster.traces.fused import is_kernel_of_its_own

aten = torch.ops.aten

VIEW, WRITE, FRESH, RESHAPES, ALLOCATES, COMPOSITE = (
    *("view", "write", "fresh"),
    *("reshapes", "allocates", "composite"),
)

# Schemas that do not say that their result shares memory with an argument.
_UNSAID_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh", "aten::detach")
_ALLOCATIONS = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
)
_FACTORIES = ("empty", "empty_strided", "full", "ones", "rand", "randn", "zeros")
_PRODUCTS = ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "linear", "matmul")
_READS = {
    aten._local_scalar_dense.default: "item",
    aten.equal.default: "equal",
    aten.allclose.default: "allclose",
}
COMMUNICATION = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_dtensor"))
# Kernels that read and write peers' memory where it is: what they do, as a collective.
SYMMETRIC = {
    **dict.fromkeys(
        (
            *("one_shot_all_reduce", "one_shot_all_reduce_out", "two_shot_all_reduce_"),
            *("two_shot_all_reduce_out", "multimem_all_reduce_", "multimem_one_shot_all_reduce"),
            "multimem_one_shot_all_reduce_out",
        ),
        "all_reduce",
    ),
    "multimem_all_gather_out": "all_gather",
    "reduce_scatter_out": "reduce_scatter",
}


@dataclass(frozen=True)
class Operation:
    """An operation's name in traces and what it does with memory.

    ``kind``: VIEW shares memory with its argument and launches nothing; WRITE returns what it
    writes, or nothing; FRESH returns new memory; RESHAPES changes an argument's size or strides in
    place; ALLOCATES makes memory without writing it; COMPOSITE is made of others. ``as_large``: it
    asks its arguments for their sizes alone. ``written`` are positions and names of the arguments
    it writes; ``returned`` are, for WRITE, those it returns. ``viewed``: of one that changes how
    its argument lies in memory, what returns such a view. ``body``: of one in Python that may
    communicate, or of whose shapes nothing else tells (``shapeless``).
    """

    name: str
    kind: str
    written: tuple[tuple[int, str], ...]
    returned: tuple[tuple[int, str], ...]
    returns_one: bool
    large_factory: bool
    as_large: bool
    copies: bool
    copies_lists: bool
    pointwise: bool
    ranges: bool
    counts: bool
    multiplies: bool
    flash_attends: bool
    communicates: bool
    sized_by_data: bool
    own_kernel: bool
    launches: bool
    reads: str | None
    viewed: Any
    shapeless: bool
    body: Callable[..., Any] | None


# By identity, which costs less than a hash; kept, so that none takes another's place.
_described: dict[int, tuple[Operation, Any]] = {}


def describe(func: Any) -> Operation:
    """What ``func`` (an ``OpOverload``) is."""
    known = _described.get(id(func))
    if known is None:
        known = _described[id(func)] = (_describe(func), func)
    return known[0]


def _describe(func: Any) -> Operation:
    schema = func._schema
    written: list[tuple[int, str]] = []
    sets: dict[str, tuple[int, str]] = {}
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None:
            for name in alias.before_set:
                sets[name] = (position, argument.name)
            if alias.is_write:
                written.append((position, argument.name))
    aliases = [output.alias_info for output in schema.returns]
    returned = [
        sets[name]
        for alias in aliases
        if alias is not None
        for name in alias.before_set
        if name in sets
    ]
    name = str(schema.name)
    if func._can_decompose() and name.partition("::")[2] not in KERNELS_OF_CUDA:
        kind = COMPOSITE
    elif torch.Tag.inplace_view in func.tags or name in ("aten::set_", "aten::resize_"):
        kind = RESHAPES
    elif name in _ALLOCATIONS:
        kind = ALLOCATES
    elif written and len(returned) == len(aliases):
        kind = WRITE
    elif name in _UNSAID_VIEWS or (
        aliases and all(alias is not None and not alias.is_write for alias in aliases)
    ):
        kind = VIEW
    else:
        kind = FRESH
    base = name.partition("::")[2]
    return Operation(
        name=str(func),
        kind=kind,
        written=tuple(written),
        returned=tuple(returned),
        returns_one=len(aliases) == 1,
        large_factory=base in _FACTORIES,
        as_large=base.endswith("_like") or base.startswith("new_"),
        copies=base in ("_to_copy", "copy_"),
        copies_lists=base in ("_foreach_copy_", "all_gather_copy_in"),
        pointwise=torch.Tag.pointwise in func.tags,
        # Their sizes follow from numbers that need not be whole.
        ranges=base in ("arange", "range"),
        counts=base == "arange",
        multiplies=base in _PRODUCTS,
        flash_attends="_flash_attention" in base or "_varlen_attn" in base,
        communicates=func.namespace in COMMUNICATION or base in SYMMETRIC,
        sized_by_data=torch.Tag.dynamic_output_shape in func.tags,
        own_kernel=is_kernel_of_its_own(str(func)),
        launches=kind in (WRITE, FRESH),
        reads=_READS.get(func),
        viewed=_viewed(func) if torch.Tag.inplace_view in func.tags else None,
        shapeless=_is_shapeless(func),
        body=_body(func),
    )


def _viewed(func: Any) -> Any:
    """``aten.t`` of ``aten.t_``; None of ``resize_``, which has no view beside it, and of a
    script's own."""
    if func.namespace != "aten":
        return None
    packet = getattr(aten, func._schema.name.partition("::")[2].removesuffix("_"))
    taken = [argument.name for argument in func._schema.arguments]
    for found in (getattr(packet, name) for name in packet.overloads()):
        schema = found._schema
        is_view = schema.returns[0].alias_info is not None and not schema.is_mutable
        if is_view and [argument.name for argument in schema.arguments] == taken:
            return found
    return None


def _is_shapeless(func: Any) -> bool:
    """Whether a script's or library's own operation, in Python, is known by running it alone."""
    made = OPDEFS.get(func._schema.name)
    if made is not None:
        return bool(func._schema.returns) and made._abstract_fn is None
    has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    rules = simple_registry.singleton.find(func.name())
    return (
        func.namespace not in ("aten", "prims")
        and has("CUDA")
        and not (has("Meta") or rules.fake_impl.kernel)
    )


def _body(func: Any) -> Callable[..., Any] | None:
    """The Python of a custom operation that may take the name of a process group, or is known by
    running it alone."""
    made = OPDEFS.get(func._schema.name)
    if made is None:
        on_device = functools.partial(func._op_dk, torch._C.DispatchKey.CUDA)
        return on_device if _is_shapeless(func) else None
    texts = any(str(argument.type) == "str" for argument in func._schema.arguments)
    return made._init_fn if texts or _is_shapeless(func) else None


def names_group(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether one of the arguments is the name of a process group."""
    names = distributed_c10d._world.pg_names.values()
    return any(isinstance(each, str) and each in names for each in (*args, *kwargs.values()))


def chosen(
    places: tuple[tuple[int, str], ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """The arguments at these positions or, further right, under these names."""
    return [
        args[position] if position < len(args) else kwargs.get(name) for position, name in places
    ]


# Tensors and other arguments as a trace holds them.

DTYPES = {
    value: name
    for name, value in sorted(vars(torch).items(), reverse=True)
    if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
}
_PLAIN = (int, float, str, bool, type(None))


def spec_of(
    tensor: torch.Tensor, storage: DeviceStorage | None, parts: Parts | None = None
) -> TensorSpec:
    """Type, shape and storage number of a tensor; strides only when it is not contiguous.

    ``parts`` gets the bytes of its storage that it covers.
    """
    contiguous = tensor.is_contiguous()
    if storage is None:
        number = None
    else:
        number = storage.number
        if parts is not None:
            parts.append((storage, extent_of(tensor, contiguous)))
    strides = None if contiguous else tuple(tensor.stride())
    return TensorSpec(DTYPES[tensor.dtype], tuple(tensor.shape), number, strides)


def as_argument(value: Any, memory: DeviceMemory, parts: Parts | None = None) -> Argument:
    """Anything an operation is called with, as a trace holds it; ``parts`` as in ``spec_of``."""
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, torch.Tensor):
        known = None
        if isinstance(value, FakeTensor) and value._fake_device.type == "cuda":
            known = memory.find(value.untyped_storage())
        return spec_of(value, known, parts)
    if isinstance(value, (list, tuple)):
        return tuple([as_argument(part, memory, parts) for part in value])
    if isinstance(value, enum.Enum):
        return str(value.name)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, complex):
        return (value.real, value.imag)
    return str(value)
