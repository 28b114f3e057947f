"""Tensors without data: torch's own fake tensors, made fast and told that CUDA exists.

A fake tensor has a meta tensor inside and claims another device. Torch's ``FakeTensorMode`` says
what an operation would return; here its answers are remembered by operation, shapes and dtypes, so
that a layer's operations cost microseconds from the second time on.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import _meta_registrations
from torch._decomp import decompositions
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nested._internal.nested_int import NestedIntNode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map, tree_unflatten

from .dense_sizes import rule_of, strides_of
from .operations import Operation, describe

_RAGGED = itertools.count()
_MEMOS = ("nonzero", "item", "unique", "unique_consecutive", "nested_int")


class _Inside(threading.local):
    kernel = False


_INSIDE = _Inside()


class DatalessMode(FakeTensorMode):
    """Answers with the shapes of results; never computes, never touches a device."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        # ``Answers`` remembers, with a shorter key.
        self.cache_enabled = False

    def __deepcopy__(self, memo: dict[int, Any]) -> DatalessMode:
        """Tensors copied with what stands in their ``__dict__`` stay this mode's own."""
        return self

    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread runs a meta kernel: all others see tensors on their device."""
        return _INSIDE.kernel

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, here: bool) -> None:
        _INSIDE.kernel = here

    @property
    def avoid_device_init(self) -> bool:
        """There is no device to initialise."""
        return True

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """The length of a jagged dimension, known by its offsets: equal to itself alone."""
        return torch.SymInt(NestedIntNode(next(_RAGGED), 1))

    def may_turn_const(self, t: torch.Tensor) -> bool:
        """No constant is propagated: values are followed elsewhere."""
        return False


def prepare_fake_tensors() -> None:
    """Let torch's fake tensors live without a device. Once per process."""
    fake_tensor.init_gpu_context = lambda device: None
    # Else torch.tensor(..., device="cuda") would allocate below the dispatcher.
    torch._C._set_only_lift_cpu_tensors(True)
    for memo in _MEMOS:
        # Instances made by ``wrap`` below set none of them.
        setattr(FakeTensor, f"_{memo}_memo", None)
        setattr(FakeTensor, f"_{memo}_memo_vc", None)
        setattr(FakeTensor, f"_{memo}_memo_epoch", None)
    FakeTensor.constant = None
    FakeTensor.real_tensor = None
    FakeTensor.pytype = None
    FakeTensor.dispatch_keys = None
    FakeTensor.__torch_dispatch__ = classmethod(_asked_by_wrapper(FakeTensor.__torch_dispatch__))
    # CUDA shifts booleans too.
    _meta_registrations.shift_dtype_check = lambda *_: None
    _patch_grouped_products()
    fake_tensor.run_fallback_kernel = _by_running_it
    for rules in (_meta_registrations, decompositions, torch._prims, torch._refs):
        rules.torch = _OwnTorch()


def _asked_by_wrapper(original: Any) -> Any:
    """A tensor of tensors may ask a part, plain to it, by name and with types that are its own."""

    def dispatch(kind: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        foreign = [
            each for each in types if not issubclass(each, (FakeTensor, torch.nn.Parameter))
        ]
        if foreign and not any(type(each) in foreign for each in tensors_in(args, kwargs or {})):
            return func(*args, **(kwargs or {}))
        return original(func, types, args, kwargs)

    return dispatch


# Elements of an operation's tensors up to which its shapes may be found by computing.
_LARGEST_FALLBACK = 1 << 26


def _by_running_it(
    mode: Any, func: Any, flat: Sequence[Any], structure: Any, error: RuntimeError
) -> Any:
    """An operation without rules for shapes is run on the host, on zeros, for its results' shapes.

    Torch would run it on the tensors' own device, which is not there. Of one that returns what it
    writes, or nothing, they are known.
    """
    returns = [each.alias_info for each in func._schema.returns]
    if func._schema.is_mutable and all(each is not None and each.is_write for each in returns):
        return None
    fakes = [each for each in flat if isinstance(each, FakeTensor)]
    # Numbers may lie on the host beside tensors.
    devices = {each.fake_device for each in fakes if each.dim()} or {
        each.fake_device for each in fakes
    }
    data_decides = {torch.Tag.inplace_view, torch.Tag.dynamic_output_shape} & set(func.tags)
    if data_decides or func._schema.is_mutable or len(devices) != 1:
        raise error
    if sum(each.numel() for each in fakes) > _LARGEST_FALLBACK:
        raise error
    (device,) = devices
    with torch.utils._python_dispatch._disable_current_modes(), no_dispatch():
        made = [
            torch.zeros_like(each, device="cpu") if isinstance(each, FakeTensor) else each
            for each in flat
        ]
        args, named = tree_unflatten(made, structure)
        results = func(*args, **named)
        returned = {id(tensor.untyped_storage()) for tensor in tensors_in(made, {})}
        metas = tree_map(
            lambda each: each.to("meta") if isinstance(each, torch.Tensor) else each, results
        )
    for each in tensors_in([results], {}):
        if id(each.untyped_storage()) in returned:
            raise error
    return tree_map(
        lambda each: wrap(mode, each, device) if isinstance(each, torch.Tensor) else each, metas
    )


class _OwnTorch(types.ModuleType):
    """torch as the rules for shapes see it: with its own factories.

    Frameworks set others in their place while they make a model, for another device or type.
    """

    def __init__(self) -> None:
        super().__init__("torch")
        for name in ("arange", "empty", "full", "ones", "tensor", "zeros"):
            setattr(self, name, getattr(torch, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _patch_grouped_products() -> None:
    """CUDA takes types other than bfloat16 too, a product a group; torch's shapes do not."""
    shapes = _meta_registrations._meta_grouped_mm_common

    def grouped(left: Any, right: Any, scale_a: Any, scale_b: Any, **named: Any) -> Any:
        if scale_a is not None or left.dtype is torch.bfloat16 or left.dtype is not right.dtype:
            return shapes(left, right, scale_a=scale_a, scale_b=scale_b, **named)
        rows, columns = left.shape[-2], right.shape[-1]
        shape: tuple[int, ...] = (rows, columns)
        if left.dim() == right.dim():
            groups = left.shape[0] if left.dim() == 3 else named["offs"].shape[0]
            shape = (groups, rows, columns)
        return left.new_empty(shape, dtype=named.get("out_dtype") or left.dtype)

    _meta_registrations._meta_grouped_mm_common = grouped


_make_subclass = torch.Tensor._make_subclass


def wrap(
    mode: DatalessMode, meta: torch.Tensor, device: torch.device, kind: Any = FakeTensor
) -> Any:
    """A fake tensor on ``device`` around a meta tensor: what ``FakeTensor`` makes, quicker."""
    made = _make_subclass(
        kind, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
    )
    if meta.layout is torch.strided:
        torch._C._set_throw_on_mutable_data_ptr(made)
    made._fake_device = device
    made.fake_mode = mode
    return made


def without_data(mode: DatalessMode, tensor: torch.Tensor) -> FakeTensor:
    """A fake tensor of a real tensor's shape, strides, type and device."""
    plain = tensor.detach()
    meta = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device="meta")
    return wrap(mode, meta, plain.device)


def is_special_parameter(kind: type) -> bool:
    """Whether this is a library's own type of parameter, as of quantised weights."""
    return issubclass(kind, torch.nn.Parameter) and kind is not torch.nn.Parameter


def dataless_of_kind(kind: Any, source: FakeTensor, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor of ``source``'s memory that is a ``kind``, a subclass of tensors, too."""
    made_kind: Any = kind if issubclass(kind, FakeTensor) else _KINDS.get(kind)
    if made_kind is None:
        made_kind = _KINDS[kind] = types.new_class(kind.__name__, (kind, FakeTensor))
        if issubclass(kind, torch.nn.parameter.UninitializedTensorMixin):
            # It refuses to be asked, and the emulation asks.
            made_kind.shape = torch._C.TensorBase.shape
            made_kind.__torch_function__ = functools.partial(_without_shape, kind)
        made_kind.__module__, made_kind.__qualname__ = kind.__module__, kind.__qualname__
    with meta_kernels(source.fake_mode):
        meta = torch.ops.aten.detach.default(source)
    made = wrap(source.fake_mode, meta, source.fake_device, made_kind)
    return made.requires_grad_(requires_grad)


_KINDS: dict[Any, Any] = {}


def _without_shape(kind: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """What lazy modules do with a tensor that has no shape yet: moved, it has none still."""
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*args, **(kwargs or {}))
    if type(result) is FakeTensor and func in kind._allowed_methods:
        return dataless_of_kind(kind, result, args[0].requires_grad)
    return result


class meta_kernels:  # noqa: N801 - a context manager, in a form that costs a microsecond less
    """Operations on fake tensors run on the meta tensors inside."""

    __slots__ = ("_guards", "_mode")

    def __init__(self, mode: DatalessMode) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        self._guards = (torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard())
        for guard in self._guards:
            guard.__enter__()
        self._mode.in_kernel_invocation = True
        torch._C._set_meta_in_tls_dispatch_include(True)

    def __exit__(self, *error: object) -> None:
        self._mode.in_kernel_invocation = False
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def _whole(value: Any) -> Any:
    return value.long() if getattr(value, "dtype", None) is torch.uint8 else value


def _of_range(args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """How to make whole numbers from, to and by ``args``; None for what torch may refuse."""
    size = 0 if 0 in args[2:] else len(range(*args))
    dtype = kwargs.get("dtype") or torch.int64
    return ("one", ((size,), (1,), dtype, kwargs["device"])) if size else None


class Answers:
    """What operations return for given shapes, remembered.

    A text that is generated grows by every token, so much is asked at one size only. Torch's fake
    mode runs a kernel for meta tensors in the end. Where that alone said the same as the mode, it
    answers for other sizes of tensors of the same types, dimensions and devices.
    """

    def __init__(self, mode: DatalessMode) -> None:
        self._mode = mode
        self._known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        # By arguments without sizes: (), then an answer of both, False where they differed.
        self._sizeless: dict[tuple[Any, ...], tuple[Any, ...] | bool] = {}

    def fresh(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation whose outputs are new tensors."""
        operation = describe(func)
        try:
            # The default type is what new tensors have and what whole numbers divide into.
            default = torch.get_default_dtype()
            named = signature(tuple(kwargs.items())) if kwargs else ()
            key: tuple[Any, ...] = (id(func), default, signature(args), named)
            if operation.ranges:
                key = (*key, tuple([arg for arg in args if isinstance(arg, float)]))
            known = self._known.get(key)
        except (TypeError, _Unkeyed):
            return self._mode.dispatch(func, types, args, kwargs)
        if known is None and operation.counts and all(type(each) is int for each in args):
            known = _of_range(args, kwargs)
            if known is not None:
                self._known[key] = known
        if known is not None:
            return self._build(known)
        sizeless = (id(func), default, _without_sizes(args), _without_sizes((*kwargs.items(),)))
        like = self._sizeless.get(sizeless)
        if like:
            known = self._known[key] = self._at_other_sizes(operation, func, args, kwargs, like)
            if known is not None:
                return self._build(known)
        if operation.name.startswith("aten.nll_loss"):
            # CUDA takes bytes as targets; torch's rules index by them, which wants whole numbers.
            args = tree_map(_whole, args)
        result = self._mode.dispatch(func, types, args, kwargs)
        template = _template(result, args, kwargs)
        if template is not None:
            self._known[key] = template
            if like is None and kwargs.get("device") is None and tensors_in(args, kwargs):
                self._sizeless[sizeless] = ()
            elif like == ():
                # Most operations of a model come at one size: they are compared at the second.
                alike = self._by_meta_kernel(func, args, kwargs, template) == template
                self._sizeless[sizeless] = template if alike else False
        return result

    def _at_other_sizes(
        self, operation: Operation, func: Any, args: Any, kwargs: Any, like: Any
    ) -> Any:
        rule = rule_of(operation, func)
        sizes = rule(tensors_in(args, kwargs), args) if rule is not None and not kwargs else None
        parts = (like[1],) if like[0] == "one" else like[1]
        if sizes is not None and len(sizes) == len(parts):
            made = [
                (size, strides_of(size), *part[2:])
                for size, part in zip(sizes, parts, strict=True)
            ]
            return like[0], made[0] if like[0] == "one" else tuple(made)
        return self._by_meta_kernel(func, args, kwargs, like)

    def _by_meta_kernel(self, func: Any, args: Any, kwargs: Any, like: Any) -> Any:
        """How to make what the meta kernel returns, on the devices of a template like it; None
        where there is no such kernel, and for arguments that the fake mode shall refuse."""
        try:
            with meta_kernels(self._mode):
                result = func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return None
        return _template(result, args, kwargs, like)

    def checked(self, func: Any, types: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """The result of an operation that returns what it writes, once it was seen to fit."""
        try:
            describe(func)
            key = (id(func), signature(args), signature(tuple(kwargs.items())))
            if key in self._known:
                return result
        except (TypeError, _Unkeyed):
            key = None
        name = func._schema.name
        in_place = name.endswith("_") and "resize" not in name
        written = args[0] if in_place and isinstance(args[0], torch.Tensor) else None
        size = None if written is None else written.shape
        self._mode.dispatch(func, types, args, kwargs)
        if written is not None and written.shape != size:
            # Some of torch's rules let it grow in place, which kernels refuse.
            sizes = f"{list(size or ())} doesn't match the broadcast shape {list(written.shape)}"
            raise RuntimeError(f"output with shape {sizes}")
        if key is not None:
            self._known[key] = ()
        return result

    def _build(self, template: tuple[Any, ...]) -> Any:
        kind, parts = template
        if kind == "one":
            return self._tensor(*parts)
        made = [part if type(part) is not tuple else self._tensor(*part) for part in parts]
        return made if kind == "list" else tuple(made)

    def _tensor(self, size: Any, strides: Any, dtype: Any, device: Any) -> FakeTensor:
        meta = torch.empty_strided(size, strides, dtype=dtype, device="meta")
        return wrap(self._mode, meta, device)


class _Unkeyed(Exception):  # noqa: N818 - no error: an argument that has no short name
    pass


_PLAIN = (int, float, bool, str, type(None))


def signature(value: Any) -> Any:
    """What of an argument decides the shapes of results, hashable."""
    kind = type(value)
    if kind is FakeTensor:
        return (value.dtype, value.shape, value.stride(), value._fake_device)
    if kind is float:
        # Learning rates and the like change every step and decide no shape.
        return float
    if kind in _PLAIN:
        # 1, 1.0 and True hash alike but promote differently.
        return (kind, value)
    if kind is tuple or kind is list:
        return tuple([signature(part) for part in value])
    if kind in _NAMES:
        return value
    if isinstance(value, FakeTensor):
        return (value.dtype, value.shape, value.stride(), value._fake_device)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.Generator):
        return None
    raise _Unkeyed


_NAMES = frozenset((torch.dtype, torch.device, torch.layout, torch.memory_format))


def _without_sizes(value: Any) -> Any:
    """What of an argument with a signature decides the types and devices of results."""
    if isinstance(value, FakeTensor):
        return (value.dtype, value.dim(), value._fake_device)
    if type(value) in (tuple, list):
        return tuple([_without_sizes(part) for part in value])
    return int if type(value) is int else signature(value)


def _template(result: Any, args: Any, kwargs: Any, like: Any = None) -> tuple[Any, ...] | None:
    """How to make this result again, None when it shares memory with an argument or itself.

    ``like``: the template whose devices a result of meta tensors has.
    """
    if isinstance(result, torch.Tensor):
        outputs, kind = [result], "one"
    elif isinstance(result, (list, tuple)):
        # Named tuples, which some decompositions return, are as good plain.
        outputs, kind = list(result), "list" if isinstance(result, list) else "tuple"
    else:
        return None
    if like is not None and (like[0] != kind or (kind != "one" and len(like[1]) != len(outputs))):
        return None
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    made_kind = FakeTensor if like is None else torch.Tensor
    if any(type(tensor) is not made_kind for tensor in tensors):
        return None
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    taken = {tensor.untyped_storage()._cdata for tensor in tensors_in(args, kwargs)}
    if len(set(storages)) < len(storages) or taken & set(storages):
        return None
    parts: list[Any] = []
    for number, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor):
            if type(output) not in _PLAIN:
                return None
            parts.append(output)
            continue
        whole = torch._prims_common.compute_required_storage_length(
            output.shape, output.stride(), 0
        )
        if output.storage_offset() or (
            output.untyped_storage().nbytes() != whole * output.dtype.itemsize
        ):
            return None
        if like is None:
            device = output._fake_device
        else:
            device = (like[1] if kind == "one" else like[1][number])[3]
        parts.append((output.shape, output.stride(), output.dtype, device))
    return (kind, parts[0] if kind == "one" else tuple(parts))


def tensors_in(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors among an operation's arguments, in order, those in lists included."""
    found: list[torch.Tensor] = []
    values = (*args, *kwargs.values()) if kwargs else args
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found.extend([part for part in value if isinstance(part, torch.Tensor)])
    return found
