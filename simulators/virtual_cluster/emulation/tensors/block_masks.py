"""What a block mask of FlexAttention leaves of the scores.

Its kernels skip blocks that the mask leaves empty and compute all others whole. How many those
are the device knows; here it follows from tokens, positions and windows that entered it exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from trainscout.simulators.virtual_cluster.emulation.values.call import CANNOT
from trainscout.simulators.virtual_cluster.emulation.values.defaults import FOLLOWED_ELEMENTS
from trainscout.simulators.virtual_cluster.emulation.values.shadow import Grade
from trainscout.simulators.virtual_cluster.emulation.values.values import Values


def is_block_mask(argument: Any) -> bool:
    """Lengths of queries and keys first, the mask's function last."""
    return isinstance(argument, tuple) and len(argument) > 3 and callable(argument[-1])


def computed_share(mask: Sequence[Any], values: Values) -> float | None:
    """Of all scores, the share that lies in blocks that are computed; None where nobody knows.

    Args:
        mask: ``BlockMask.as_tuple()``: lengths, counts and places of partial and of full blocks
            by row of blocks, ..., tokens a block of queries and of keys, the mask's function.
    """
    queries, keys, partial, _, full, *_, rows, columns, sees = mask
    batch, cells = partial.shape[0], -(-queries // rows) * -(-keys // columns)
    host = _OnHost(values)
    try:
        # Counts below none, as scripts that subtract full blocks make them, are none.
        counts = [host.known(each).clamp(min=0) for each in (partial, full) if each is not None]
        share: float = sum(each.sum().item() for each in counts) / cells
        return share / int(partial.shape[:2].numel())
    except LookupError:
        pass
    if cells * batch > FOLLOWED_ELEMENTS:
        return None
    # The corners of a block hold its nearest and its farthest pair of tokens: of masks that leave
    # bands and documents, a block without a corner is empty.
    ends = [
        (first := torch.arange(0, length, block), (first + block - 1).clamp(max=length - 1))
        for length, block in ((queries, rows), (keys, columns))
    ]
    seen = torch.zeros((), dtype=torch.bool)
    try:
        with host, torch.no_grad():
            one = torch.arange(batch)[:, None, None]
            for row, column in itertools.product(*ends):
                seen = seen | sees(one, torch.tensor(0), row[:, None], column[None, :])
            return float(seen.double().mean())
    except (*CANNOT, LookupError):
        return None


class _OnHost(TorchDispatchMode):
    """Computes in host memory, with what is exactly known of the device's tensors."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(self.known, (args, kwargs or {}))
        return func(*args, **kwargs)

    def known(self, value: Any) -> Any:
        """The value of a device tensor; anything else as it is.

        Raises:
            LookupError: where it is not known exactly.
        """
        if not isinstance(value, FakeTensor):
            return value
        reading = self._values.read(value, "mask")
        if reading.grade != Grade.EXACT.label:
            raise LookupError
        return reading.value
