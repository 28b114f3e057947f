"""What the host learns of device memory: single values, and copies into host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.virtual_cluster.emulation.assertions import assertions
from trainscout.simulators.virtual_cluster.emulation.loops import Loops
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.values.defaults import (
    FOLLOWED_ELEMENTS,
    PASSES,
)
from trainscout.simulators.virtual_cluster.traces.events import Op, Scalar, Synchronise, ValueRead
from trainscout.simulators.virtual_cluster.traces.vocabulary import PAGEABLE

from .operations import WRITE, as_argument, describe, spec_of

aten = torch.ops.aten
# Copies of at most so many elements become real tensors: what scripts branch on is small.
LARGEST_REAL_COPY = 64
_ENDED = f"{{}}: a loop waits for it and is taken to end after {PASSES} passes"
_HOLDS = "{}: what the script asserts of it is taken to hold"
_WORST = ("invented", "expected", "exact")


class DeviceCopies:
    """Answers what reads device memory, and writes down that the host waited for it."""

    def __init__(self, state: RankState) -> None:
        self._state = state
        self._loops = Loops()

    def read(self, func: Any, operation: str, args: Any) -> Any:
        """``item``, ``equal`` and ``allclose``: one value the script goes on with."""
        if operation == "item":
            return self.value(args[0], "item").item()
        readings = [self._state.values.read(tensor, operation) for tensor in args[:2]]
        same = getattr(torch, operation)(*(each.value for each in readings), *args[2:])
        worst = min(readings, key=lambda reading: _WORST.index(reading.grade))
        hint = worst.hint
        if not same and worst.grade == "invented" and self._ends_loop():
            same, hint = True, _ENDED.format(operation)
        self._note(operation, same, worst.grade, hint)
        return same

    def value(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        """A tensor's contents as the host sees them, after waiting for the device."""
        reading = self._state.values.read(tensor, operation)
        value, hint = reading.value, reading.hint
        if reading.follows and value.numel() == 1 and self._ends_loop():
            value = ~value if value.dtype is torch.bool else torch.zeros_like(value)
            hint = _ENDED.format(operation)
        elif reading.grade == "invented" and value.numel() == 1 and self._is_asserted(value.dtype):
            value = torch.full_like(value, value.dtype is torch.bool)
            hint = _HOLDS.format(operation)
        self._note(operation, _scalars(value), reading.grade, hint)
        return value

    def _ends_loop(self) -> bool:
        recorder = self._state.recorder
        return self._loops.ends(recorder.sites.innermost(2), recorder.place())

    def _is_asserted(self, dtype: torch.dtype) -> bool:
        places = self._state.recorder.sites.innermost(1)
        if not places:
            return False
        (file, line) = places[0]
        kinds = assertions(file)
        return line in (kinds.flags if dtype is torch.bool else kinds.small)

    def note_size(self, func: Any, reading: Any, result: Any) -> None:
        """The size of a result depended on values: the host waited to learn it."""
        self._note(str(func), _scalars(reading.value), reading.grade, reading.hint)

    def host_copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a copy into host memory, or NotImplemented for anything else."""
        if func is aten._to_copy.default:
            device = kwargs.get("device")
            source = args[0]
            if device is None or device.type != "cpu" or not is_on_device(source):
                return NotImplemented
            if source.numel() > LARGEST_REAL_COPY and not self._worth_copying(source):
                return self._large_copy(func, source, args, kwargs)
            dtype = kwargs.get("dtype") or source.dtype
            shaped = torch.empty(source.shape, dtype=dtype)
            self._launch(func, source, shaped, args, kwargs)
            copy = self._contents(source, "to cpu", kwargs.get("non_blocking", False)).to(dtype)
            self._state.values.copied(source, copy)
            if kwargs.get("non_blocking"):
                self._state.pinned.add(copy.untyped_storage())
            return copy
        if describe(func).kind == WRITE and args and isinstance(args[0], torch.Tensor):
            if isinstance(args[0], FakeTensor) or args[0].device.type != "cpu":
                return NotImplemented
            return self._into_host(func, args, kwargs)
        return NotImplemented

    def _worth_copying(self, source: torch.Tensor) -> bool:
        """Whole numbers become real at any size followed: scripts index and decode with them.
        Numbers nobody knows do not: models are moved to the host, too."""
        if source.numel() > FOLLOWED_ELEMENTS:
            return False
        numbers = source.dtype.is_floating_point or source.dtype.is_complex
        return not numbers or self._state.values.read(source, "to cpu").grade != "invented"

    def _into_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A real host tensor is written from tensors without data: their contents are read."""
        pinned = args[0].untyped_storage() in self._state.pinned
        non_blocking = pinned and func is aten.copy_.default and len(args) > 2 and args[2]
        large = func is aten.copy_.default and args[1].numel() > LARGEST_REAL_COPY
        if large and self._state.values.read(args[1], "copy to host").grade == "invented":
            # Nobody knows what arrives; what was there is a better guess than a default.
            self._launch(func, args[1], args[0], args, {})
            if not non_blocking:
                self._wait()
            return args[0]

        def contents(value: Any) -> Any:
            if isinstance(value, FakeTensor):
                if is_on_device(value):
                    self._launch(func, value, args[0], args, kwargs)
                return self._contents(value, "copy to host", non_blocking)
            if type(value) in (list, tuple):
                return type(value)([contents(part) for part in value])
            return value

        real = tuple(contents(value) for value in args)
        return func(*real, **{name: contents(value) for name, value in kwargs.items()})

    def _large_copy(self, func: Any, source: Any, args: Any, kwargs: Any) -> Any:
        state = self._state
        result = state.dataless.dispatch(func, (), args, kwargs)
        self._launch(func, source, result, args, kwargs)
        if not kwargs.get("non_blocking", False):
            self._wait()
        state.values.observe(func, args, kwargs, result)
        return result

    def _contents(self, source: torch.Tensor, operation: str, non_blocking: bool) -> torch.Tensor:
        reading = self._state.values.read(source, operation)
        if not non_blocking and is_on_device(source):
            self._note(operation, _scalars(reading.value), reading.grade, reading.hint)
        elif reading.grade == "invented":
            self._state.recorder.invented(operation, _scalars(reading.value), reading.hint)
        return reading.value.clone()

    def _wait(self) -> None:
        """The host goes on when the copy has arrived."""
        state = self._state
        stream = state.shim.stream()
        state.order.host_wait_stream(stream)
        state.recorder.emit(Synchronise("stream", stream, state.recorder.sites.current()))

    def _launch(self, func: Any, source: Any, result: Any, args: Any, kwargs: Any) -> None:
        state = self._state
        state.recorder.launching()
        stream = state.shim.stream()
        part = state.memory.part(source)
        state.memory.used([part] if part is not None else [], [], stream)
        inputs = [as_argument(value, state.memory) for value in args]
        inputs += [(name, as_argument(value, state.memory)) for name, value in kwargs.items()]
        # What a copy without waiting makes is pinned.
        if func is aten._to_copy.default and kwargs.get("non_blocking"):
            state.pinned.add(result.untyped_storage())
        if result is not None and result.untyped_storage() not in state.pinned:
            inputs.append((PAGEABLE, True))
        outputs = () if result is None else (spec_of(result, None),)
        state.recorder.operations += 1
        site = state.recorder.sites.current()
        state.recorder.emit(Op(str(func), tuple(inputs), outputs, stream, site))

    def _note(self, operation: str, value: Any, grade: str, hint: str | None) -> None:
        state = self._state
        stream = state.shim.stream()
        state.order.host_wait_stream(stream)
        if grade == "invented":
            state.recorder.invented(operation, value, hint)
        elif grade == "expected":
            state.recorder.assumed(operation, value, hint)
        site = state.recorder.sites.current()
        state.recorder.emit(ValueRead(operation, value, grade, stream, site))


def is_on_device(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor._fake_device.type == "cuda"


def _scalars(value: Any) -> Scalar | tuple[Scalar, ...]:
    if not isinstance(value, torch.Tensor):
        return value  # type: ignore[no-any-return]
    if value.dim() == 0:
        return _scalar(value.item())
    # Long reads are told by their first values: a trace is no place for data.
    return tuple([_scalar(part) for part in value.flatten()[:LARGEST_REAL_COPY].tolist()])


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def copied_in_turn(func: Any, args: Any) -> Any:
    """What a copy of a list of tensors returns some of which lie in host memory: no fused kernel
    takes them, so they are copied one by one (``foreach_tensor_copy_list_kernel_slow_`` of
    aten/src/ATen/native/ForeachOpsKernels.cpp)."""
    if func is aten._foreach_copy_.default:
        (targets, sources), rest, returned = args[:2], args[2:], None
    else:
        # FSDP's copy of a layer's shards into the buffer that is gathered.
        sources, buffer, sizes, elements, rank = args
        shard = buffer.narrow(0, elements * rank, elements)
        targets, rest, returned = shard.split(sizes), (), (shard, buffer)
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, *rest)
    return returned
