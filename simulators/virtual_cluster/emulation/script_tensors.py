"""Tensors, their options and factories as C++ spells them, on Python's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

# Names that C++ has for types of elements and torch in Python has not.
_OTHER_NAMES = {"byte": torch.uint8, "char": torch.int8}
_FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn")


def dtype_of(kind: str) -> torch.dtype:
    """Of C++'s ``float``, ``int64_t`` or ``__nv_bfloat16``, or of ``ScalarType``'s ``Float``.

    Raises:
        KeyError: for any other name.
    """
    plain = kind.rpartition(":")[2].removeprefix("__").removeprefix("nv_").removesuffix("_t")
    found = _OTHER_NAMES.get(plain.lower()) or getattr(torch, plain.lower(), None)
    if not isinstance(found, torch.dtype):
        raise KeyError(kind)
    return found


class Options:
    """``TensorOptions``: each setter gives changed ones, without an argument it tells."""

    def __init__(self, **chosen: Any) -> None:
        self._chosen = chosen

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def get_or_set(*given: Any) -> Any:
            if not given:
                return self._chosen[name]
            return Options(**{**self._chosen, name: given[0]})

        return get_or_set

    def named(self) -> dict[str, Any]:
        """As Python's factories take them."""
        taken = ("dtype", "device")
        return {name: value for name, value in self._chosen.items() if name in taken}


class Tensor:
    """A tensor with C++'s methods: most are Python's, attributes are called."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def sizes(self) -> list[int]:
        """Its shape."""
        return list(self.tensor.shape)

    def size(self, place: int) -> int:
        """Of one dimension."""
        return int(self.tensor.shape[place])

    def options(self) -> Options:
        """To make others like it."""
        return Options(dtype=self.tensor.dtype, device=self.tensor.device)

    type = options

    def scalar_type(self) -> torch.dtype:
        """Of its elements."""
        return self.tensor.dtype

    dtype = scalar_type

    def device(self) -> torch.device:
        """Where it is."""
        return self.tensor.device

    def defined(self) -> bool:
        """It is a tensor."""
        return True

    has_value = defined

    def value(self) -> Tensor:
        """Itself, where it was optional."""
        return self

    def is_cuda(self) -> bool:
        """Whether it is on the device."""
        return bool(self.tensor.is_cuda)

    def __getitem__(self, place: int) -> Tensor:
        return Tensor(self.tensor[place])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _calling(getattr(self.tensor, name))


def _calling(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        named: dict[str, Any] = {}
        for each in given:
            named |= each.named() if isinstance(each, Options) else {}
        plain = [to_python(each) for each in given if not isinstance(each, Options)]
        return to_cpp(function(*plain, **named))

    return call


def to_cpp(value: Any) -> Any:
    """Tensors in it with C++'s methods."""
    if isinstance(value, torch.Tensor):
        return Tensor(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(to_cpp(each) for each in value)
    return value


def to_python(value: Any) -> Any:
    """Back."""
    if isinstance(value, Tensor):
        return value.tensor
    if isinstance(value, (list, tuple)):
        return type(value)(to_python(each) for each in value)
    return value


class _Torch:
    """``torch::`` and ``at::``: factories take options last, names of types begin with k."""

    def __getattr__(self, name: str) -> Any:
        if name in ("kCUDA", "kCPU"):
            return torch.device(name[1:].lower())
        if name.startswith("k"):
            return dtype_of(name[1:])
        if name in ("ScalarType", "Dtype"):
            return _Types()
        if name in ("dtype", "device"):
            return lambda chosen: Options(**{name: chosen})
        if name == "TensorOptions":
            return Options
        if name == "Tensor":
            return lambda *given: given[0] if given else None
        if name in ("IntArrayRef", "ArrayRef"):
            return list
        return _calling(_factory(name) if name in _FACTORIES else getattr(torch, name))


class _Types:
    """``ScalarType::`` and its types."""

    def __getattr__(self, name: str) -> torch.dtype:
        return dtype_of(name)


def _factory(name: str) -> Callable[..., Any]:
    def make(size: list[int], *given: Any, **named: Any) -> torch.Tensor:
        dtypes = [each for each in given if isinstance(each, torch.dtype)]
        others = [each for each in given if not isinstance(each, torch.dtype)]
        named |= {"dtype": dtypes[0]} if dtypes else {}
        made: torch.Tensor = getattr(torch, name)(size, *others, **named)
        return made

    return make


_STANDARD = SimpleNamespace(
    min=min,
    max=max,
    ceil=math.ceil,
    floor=math.floor,
    sqrt=math.sqrt,
    move=lambda value: value,
    make_tuple=lambda *given: given,
    make_pair=lambda *given: given,
    tuple=lambda *given: given,
    vector=lambda *given: list(given[0]) if given else [],
)
# What an expression may name that no statement made.
NAMESPACES: dict[str, Any] = {
    **{name: _Torch() for name in ("torch", "at", "c10")},
    "std": _STANDARD,
    "min": min,
    "max": max,
    "Tensor": lambda *given: given[0] if given else None,
    "of_type": dtype_of,
}
