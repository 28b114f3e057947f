"""``torch.cuda.FloatTensor`` and its kin: types that scripts test with ``isinstance``."""

from __future__ import annotations

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
