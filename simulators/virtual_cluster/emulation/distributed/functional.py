"""Functional collectives, which come through the dispatcher as operations with results."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.distributed.group import VirtualGroup
from trainscout.simulators.virtual_cluster.emulation.distributed.work import HostWork, VirtualWork
from trainscout.simulators.virtual_cluster.emulation.fake_tensors import without_data
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "shard_dim_alltoall": "all_to_all",
}


class FunctionalCollectives:
    """Launches functional collectives; ``wait_tensor`` waits for the result it is given."""

    def __init__(self, state: RankState) -> None:
        self._state = state
        # By storage of the result. A result nobody waits for leaves its entry to the next.
        self._pending: dict[int, VirtualWork] = {}

    def __call__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.partition("::")[2]
        if name == "_wrap_tensor_autograd":
            # Waits when the tensor is first used.
            return AsyncCollectiveTensor(args[0])
        if name == "wait_tensor":
            work = self._pending.pop(args[0].untyped_storage()._cdata, None)
            if work is not None:
                work.wait()
            return args[0]
        if name in ("isend", "irecv"):
            return self._transfer(name, *args)
        in_place = name.endswith("_")
        base = name.removesuffix("_").removesuffix("_out").removesuffix("_coalesced")
        if base not in _KINDS:
            raise InputError("operation", str(func), "is no collective that is emulated", _KINDS)
        group = _group(args[-1])
        inputs = list(args[0]) if isinstance(args[0], (list, tuple)) else [args[0]]
        if in_place:
            result: Any = args[0]
        elif "out" in kwargs:
            result = kwargs["out"]
        else:
            result = self._results(func, types, args, kwargs)
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        for given, made in zip(inputs, outputs, strict=True):
            self._launch(base, group, given, made, args)
        return result

    def restart(self) -> None:
        """A new trace begins: nothing is under way."""
        self._pending.clear()

    def _launch(self, base: str, group: VirtualGroup, given: Any, made: Any, args: Any) -> None:
        splits_in = splits_out = None
        root = None
        reduction = "sum"
        if base == "all_to_all_single":
            row = given.numel() // given.shape[0] if given.shape[0] else 1
            splits_out = tuple(int(length) * row for length in args[1])
            splits_in = tuple(int(length) * row for length in args[2])
        elif base == "broadcast":
            root = int(args[1])
        elif base in ("all_reduce", "reduce_scatter_tensor"):
            reduction = str(args[1]).lower()
        if base == "all_reduce" and made is not given and not isinstance(made, FakeTensor):
            made.copy_(given)
        work = group.launches.collective(
            _KINDS[base],
            [given],
            [made],
            root=root,
            reduction=reduction,
            splits_in=splits_in,
            splits_out=splits_out,
        )
        if work is not None:
            self._pending[made.untyped_storage()._cdata] = work

    def _results(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        state = self._state
        if _on_device(args[0]):
            result = state.dataless.dispatch(func, types, args, kwargs)
            stream = state.shim.stream()
            for made in result if isinstance(result, (list, tuple)) else (result,):
                state.memory.track(made.untyped_storage(), stream)
            return result
        # Host tensors are real: only the shapes of results are taken from torch.
        first = args[0]
        if isinstance(first, (list, tuple)):
            shaped: Any = [without_data(state.dataless, tensor) for tensor in first]
        else:
            shaped = without_data(state.dataless, first)
        result = state.dataless.dispatch(func, types, (shaped, *args[1:]), kwargs)
        if isinstance(result, (list, tuple)):
            return [torch.zeros(made.shape, dtype=made.dtype) for made in result]
        return torch.zeros(result.shape, dtype=result.dtype)

    def _transfer(self, name: str, tensor: Any, peer: int, tag: int, group: Any) -> Any:
        kind = "send" if name == "isend" else "recv"
        work = _group(group).launches.transfer(kind, tensor, peer)
        if isinstance(work, HostWork):
            work.wait()
        else:
            self._pending[tensor.untyped_storage()._cdata] = work
        return tensor


def _group(named: Any) -> VirtualGroup:
    if isinstance(named, str):
        return torch.distributed.distributed_c10d._resolve_process_group(named)  # type: ignore[no-any-return]
    return named  # type: ignore[no-any-return]


def _on_device(value: Any) -> bool:
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, FakeTensor)
