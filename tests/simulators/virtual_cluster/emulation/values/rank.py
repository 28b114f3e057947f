"""A rank without an emulator: fake tensors whose operations ``Values`` observes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainscout.simulators.virtual_cluster.emulation.values import Reading, Values
from trainscout.simulators.virtual_cluster.emulation.values.sizes import is_data_dependent


class FakeRank(TorchDispatchMode):
    """Inside, every new tensor is fake. ``sizes`` are the data-dependent ones decided so far."""

    def __init__(self, values: Values | None = None) -> None:
        super().__init__()
        self.values = values or Values()
        self.sizes: list[Reading] = []
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_data_dependent(func, args, kwargs):
            with self._fake:
                result, size = self.values.data_dependent(func, args, kwargs)
            self.sizes.append(size)
            return result
        with self._fake:
            result = func(*args, **kwargs)
        self.values.observe(func, args, kwargs, result)
        return result

    def enter(self, data: torch.Tensor) -> torch.Tensor:
        """The host's data on the fake device."""
        with self._fake:
            made = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype)
        self.values.seed(made, data)
        return made

    def unknown(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        with self._fake:
            return torch.empty(shape, dtype=dtype)

    def read(self, tensor: torch.Tensor) -> Any:
        assert isinstance(tensor, FakeTensor)
        return self.values.read(tensor, "tolist").value.tolist()

    def grade(self, tensor: torch.Tensor) -> str:
        return self.values.read(tensor, "tolist").grade
