"""``torch.cuda.FloatTensor`` and its kin: types that scripts test with ``isinstance``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _LegacyType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, torch.Tensor):
            return False
        return bool(instance.is_cuda and instance.dtype == cls.dtype)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not args or isinstance(args[0], int):
            return torch.empty(*(args or (0,)), dtype=cls.dtype, device="cuda")
        return torch.tensor(args[0], dtype=cls.dtype, device="cuda")


def legacy_types() -> dict[str, type]:
    """Name in ``torch.cuda`` to type."""
    return {name: _LegacyType(name, (), {"dtype": dtype}) for name, dtype in _NAMES.items()}


def tensor_type(of_host: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.type`` that takes types of the device, and their names."""

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = getattr(torch.cuda, dtype.rpartition(".")[2], dtype)
        if isinstance(dtype, _LegacyType):
            return self.to(self.device if self.is_cuda else "cuda", dtype.dtype)
        return of_host(self, dtype, *args, **kwargs)

    return type_


def set_default_tensor_type(of_host: Callable[[Any], None]) -> Callable[[Any], None]:
    """``torch.set_default_tensor_type`` that takes types of the device: new tensors are there,
    those of ``torch.Tensor(...)`` included.
    """

    def set_default(given: Any) -> None:
        name = given if isinstance(given, str) else f"torch.cuda.{given.__name__}"
        torch.Tensor.__new__ = _new
        if not isinstance(given, (str, _LegacyType)) or not name.startswith("torch.cuda."):
            torch.set_default_device(None)
            del torch.Tensor.__new__
            of_host(given)
            return
        torch.set_default_dtype(_NAMES[name.rpartition(".")[2]])
        torch.set_default_device("cuda")

    return set_default


def _new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    made = torch._C.TensorBase.__new__(cls, *args, **kwargs)
    return made.cuda() if cls is torch.Tensor and not kwargs else made
