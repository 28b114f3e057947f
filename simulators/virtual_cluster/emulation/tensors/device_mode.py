"""The emulated device: what torch's dispatcher sends to it is answered and written down.

Tensors in host memory are real and are computed with; tensors on the device have no data. An
operation that touches the device is answered with the shapes of its results and becomes events.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._library.fake_impl import FakeImplCtx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.nn.attention import current_flash_attention_impl
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.memory import Parts
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.values.sizes import is_data_dependent
from trainscout.simulators.virtual_cluster.traces.events import (
    OTHER,
    SETUP,
    Argument,
    Op,
    Synchronise,
    TensorSpec,
)
from trainscout.simulators.virtual_cluster.traces.fused import DROPOUT
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.vocabulary import PAGEABLE

from . import operations
from .block_masks import computed_share, is_block_mask
from .device_copies import DeviceCopies, copied_in_turn, is_on_device
from .fake import Answers, meta_kernels, tensors_in, without_data, wrap
from .operations import Operation, as_argument, describe, spec_of
from .sparse import SparseTensors

aten = torch.ops.aten
_ALIAS = aten.alias.default
_DEVICE, _META = torch.ops.prim.device.default, torch.device("meta")
_HOST = torch.device("cpu")
# From memory that is not pinned so much goes to the device without the host's waiting (CUDA C++
# Programming Guide, implicit concurrency of host and device).
_BUFFERED_BYTES = 64 * 2**10
_FAKE_KEY = torch._C._TorchDispatchModeKey.FAKE
# Larger host tensors of numbers nobody has read hold no data either: models are often initialised
# on the host, and eight billion weights would not fit there.
LARGEST_HOST_FACTORY = 65536
_OWN_TYPES = (FakeTensor, torch.Tensor, torch.nn.Parameter)
# Composites that reach a mode whole in inference mode, whose device is no argument by name.
_DEVICE_SECOND = frozenset((aten.to.device,))


class DeviceMode(TorchDispatchMode):
    """Sees every operation of the thread it is entered on, and of backward passes begun there."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Dynamo never runs here; keeping it away costs more than the operation.
        return False

    def __init__(self, state: RankState) -> None:
        super().__init__()
        self.state = state
        self.answers = Answers(state.dataless)
        self._copies = DeviceCopies(state)
        self._sparse = SparseTensors(state, self._copies)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            # Asked below Python, about as often as there are operations.
            return _META if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        kwargs = kwargs or {}
        # Shapes that DTensor and others ask for below a fake mode of their own are no execution.
        if torch._C._get_dispatch_mode(_FAKE_KEY) is not None:
            return func(*args, **kwargs)
        for kind in types:
            if kind not in _OWN_TYPES and not issubclass(kind, FakeTensor):
                # DTensor and the like take their turn; their parts come back here.
                return NotImplemented
        state = self.state
        tensors = tensors_in(args, kwargs)
        operation = None if isinstance(func, HigherOrderOperator) else describe(func)
        if operation is not None and _is_real(func, operation, tensors, args, kwargs):
            return self._on_host(func, operation, tensors, args, kwargs)
        state.recorder.enter()
        try:
            with state.lock:
                if operation is None:
                    return self._higher_order(func, args, kwargs)
                return self._dispatch(func, operation, types, tensors, args, kwargs)
        except Exception as error:
            state.recorder.failed(error)
            raise
        finally:
            state.recorder.leave()

    def _dispatch(
        self, func: Any, operation: Operation, types: Any, tensors: Any, args: Any, kwargs: Any
    ) -> Any:
        state = self.state
        if state.recorder.is_updated and func is not aten.detach.default and _to_learn(tensors):
            # The loss of a model whose own module nobody calls, as of a method that is no forward.
            state.recorder.forward_begins()
        if func is torch.ops._dtensor.shard_dim_alltoall.default and not tensors[0].is_meta:
            with self:
                return state.functional.shard_dim_alltoall(*args)
        if operation.communicates:
            return state.functional(func, types, args, kwargs)
        if operation.body is not None and (
            operation.shapeless or operations.names_group(args, kwargs)
        ):
            with self:
                return operation.body(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda" and device.index is None:
            kwargs["device"] = torch.device("cuda", state.shim.device())
        if func is aten.record_stream.default:
            state.memory.record_stream(args[0].untyped_storage(), int(args[1].stream_id))
            return None
        if self._sparse.takes(func, tensors, args):
            with self:
                return self._sparse.answer(func, tensors, args, kwargs)
        if operation.reads is not None:
            return self._copies.read(func, operation.reads, args)
        if operation.kind == operations.WRITE or operation.copies:
            special = self._copies.host_copy(func, args, kwargs)
            if special is not NotImplemented:
                return special
        if operation.copies_lists and any(not is_on_device(each) for each in tensors):
            with self:
                return copied_in_turn(func, args)
        if operation.sized_by_data and is_data_dependent(func, args, kwargs):
            with state.dataless:
                result, reading = state.values.data_dependent(func, args, kwargs)
            self._finish(operation, tensors, args, kwargs, result)
            self._copies.note_size(func, reading, result)
            if reading.grade != "exact" and isinstance(result, FakeTensor):
                result.assumed_length = True
            return result
        return self._on_device(func, operation, types, tensors, args, kwargs)

    def _higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        loop = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if func in registered_hop_fake_fns or loop is None:
            return higher_order(self.state, func, args, kwargs)
        # A loop or a choice: what it calls is what is launched.
        with self:
            return loop(*args, **kwargs)

    def _on_host(
        self, func: Any, operation: Operation, tensors: Any, args: Any, kwargs: Any
    ) -> Any:
        if not tensors and operation.large_factory and _is_large(args[0], kwargs):
            pinned = kwargs.pop("pin_memory", None)
            made = self.answers.fresh(func, (), args, {**kwargs, "device": _HOST})
            if pinned:
                self.state.pinned.add(made.untyped_storage())
            self.state.values.observe(func, args, kwargs, made)
            return made
        if func is aten.empty_like.default and args[0].is_meta and kwargs.get("device") == _HOST:
            # Modules that were made without memory get some (``to_empty``).
            with self:
                dtype = kwargs.get("dtype") or args[0].dtype
                return torch.empty(args[0].shape, dtype=dtype, device=_HOST)
        result = func(*args, **kwargs)
        # Below torch.func's transforms a number may be copied as if it were a tensor.
        if tensors and (operation.copies or func is aten.clone.default):
            self.state.values.copied(tensors[-1], result)
        if kwargs.get("pin_memory"):
            self.state.pinned.add(result.untyped_storage())
        return result

    def _on_device(
        self, func: Any, operation: Operation, types: Any, tensors: Any, args: Any, kwargs: Any
    ) -> Any:
        state = self.state
        if operation.kind == operations.COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        given, named = args, kwargs
        for tensor in tensors:
            if not isinstance(tensor, FakeTensor):
                given, named = self._without_data(args, kwargs)
                break
        if named.get("generator") is not None:
            # Torch's own answers refuse some, as of ``exponential_``.
            named = {**named, "generator": None}
        kind = operation.kind
        if kind == operations.VIEW:
            result = self._view(func, types, given, named)
        elif kind == operations.WRITE:
            returned = operations.chosen(operation.returned, given, named)
            result = None
            if returned:
                result = returned[0] if operation.returns_one else tuple(returned)
            result = self.answers.checked(func, types, given, named, result)
        elif kind == operations.RESHAPES:
            before = None if operation.viewed is None else self._view(_ALIAS, types, given[:1], {})
            result = state.dataless.dispatch(func, types, given, named)
            for place in operations.chosen(operation.written, given, named):
                state.memory.resized(place.untyped_storage(), state.shim.stream())
            if before is not None:
                state.values.observe(operation.viewed, (before, *args[1:]), kwargs, result)
                return result
        else:
            try:
                result = self.answers.fresh(func, types, given, named)
                if kwargs.get("pin_memory"):
                    state.pinned.add(result.untyped_storage())
            except DynamicOutputShapeException:
                # A library's own operation, of which only it knows how its size follows.
                return self._of_assumed_size(func, operation, types, tensors, args, kwargs)
        if kind != operations.VIEW:
            self._finish(operation, tensors, args, kwargs, result)
        state.values.observe(func, args, kwargs, result)
        return result

    def _of_assumed_size(
        self, func: Any, operation: Operation, types: Any, tensors: Any, args: Any, kwargs: Any
    ) -> Any:
        reading = self.state.values.own_size(func, args, tensors[0])
        size = int(reading.value)
        known, FakeImplCtx.new_dynamic_size = FakeImplCtx.new_dynamic_size, lambda *_, **__: size
        try:
            result = self.state.dataless.dispatch(func, types, *self._without_data(args, kwargs))
        finally:
            FakeImplCtx.new_dynamic_size = known
        self._finish(operation, tensors, args, kwargs, result)
        self._copies.note_size(func, reading, result)
        return result

    def _view(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        mode = self.state.dataless
        source = args[0]
        if type(source) is list or not isinstance(source, FakeTensor):
            return mode.dispatch(func, types, args, kwargs)
        if func is aten.view.default and getattr(source, "assumed_length", False):
            self._as_long_as_viewed(source, args[1], types)
        with meta_kernels(mode):
            result = func._op(*args, **kwargs)
        device = source._fake_device
        if isinstance(result, torch.Tensor):
            return wrap(mode, result, device)
        return type(result)([wrap(mode, part, device) for part in result])

    def _as_long_as_viewed(self, tensor: Any, sizes: Any, types: Any) -> None:
        """What flags of unknown values select is as long as the sizes say at which it is viewed,
        if autograd does not remember another length."""
        given, row = math.prod(each for each in sizes if each != -1), tensor[:1].numel()
        step = given // math.gcd(given, row) if given else 0
        if not step or tensor.requires_grad:
            return
        length = step if -1 not in sizes else max(1, round(len(tensor) / step)) * step
        if length == len(tensor):
            return
        resize = (tensor, (length, *tensor.shape[1:]))
        self.state.dataless.dispatch(aten.resize_.default, types, resize, {})
        self.state.memory.resized(tensor.untyped_storage(), self.state.shim.stream())

    def _finish(
        self, operation: Operation, tensors: Any, args: Any, kwargs: Any, result: Any
    ) -> None:
        """Memory for what is new, order between streams, and the event."""
        state = self.state
        state.recorder.launching()
        if operation.written and state.updates is not None and state.recorder.phase == OTHER:
            state.updates.wrote(operations.chosen(operation.written, args, kwargs))
        stream = state.shim.stream()
        memory = state.memory
        outputs: list[TensorSpec] = []
        written: Parts = []
        results = result if isinstance(result, (list, tuple)) else (result,)
        for output in results:
            for made in output if isinstance(output, (list, tuple)) else (output,):
                if isinstance(made, FakeTensor) and made._fake_device.type == "cuda":
                    storage = memory.track(made.untyped_storage(), stream)
                    outputs.append(spec_of(made, storage, written))
                    if state.recorder.phase != SETUP:
                        state.recorder.devices.add(made._fake_device.index)
        if not operation.launches:
            return
        read: Parts = []
        inputs = [as_argument(value, memory, read) for value in args]
        for name, value in kwargs.items():
            inputs.append((name, as_argument(value, memory, read)))
        if operation.as_large:
            read.clear()
        if not (written or read):
            if state.recorder.phase != SETUP and not state.recorder.is_beside():
                state.recorder.host_bytes += _host_bytes(operation.name, inputs, results)
            return
        # What an operation returns of what it writes is among the results already.
        if operation.written and not operation.returned:
            as_argument(operations.chosen(operation.written, args, kwargs), memory, written)
        if operation.own_kernel:
            memory.materialise(read)
            memory.materialise(written)
        elif operation.name == DROPOUT:
            memory.materialise(written[1:])
        memory.used(read, written, stream)
        arrives = False
        if operation.copies and tensors:
            source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
            if source.device.type == "cpu":
                pageable = source.untyped_storage() not in state.pinned
                inputs += [(PAGEABLE, True)] if pageable else []
                staged = pageable and source.nbytes > _BUFFERED_BYTES
                arrives = staged or not (kwargs.get("non_blocking") or True in args[2:])
        single = operation.multiplies and tensors[0].dtype is torch.float32
        # cuBLAS may round fp32 operands, by whatever name the script said so.
        if single and torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32":
            inputs.append(("allow_tf32", True))
        if operation.flash_attends and (newer := current_flash_attention_impl()):
            inputs.append(("implementation", newer))
        site = state.recorder.sites.current()
        state.recorder.operations += 1
        state.recorder.emit(Op(operation.name, tuple(inputs), tuple(outputs), stream, site))
        if arrives:
            # The host goes on when the copy has arrived (``memcpy_and_sync`` of torch).
            state.order.host_wait_stream(stream)
            state.recorder.emit(Synchronise("stream", stream, site))

    def _without_data(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        mode = self.state.dataless

        def convert(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value if isinstance(value, FakeTensor) else without_data(mode, value)
            if type(value) in (list, tuple):
                return type(value)([convert(part) for part in value])
            return value

        return tuple(convert(value) for value in args), {
            name: convert(value) for name, value in kwargs.items()
        }


def _to_learn(tensors: Any) -> bool:
    """Is a parameter among them, and are gradients followed?"""
    return torch.is_grad_enabled() and any(each.requires_grad and each.is_leaf for each in tensors)


def _is_real(func: Any, operation: Operation, tensors: Any, args: Any, kwargs: Any) -> bool:
    """Whether this is an operation on host data, to be computed."""
    if operation.communicates:
        return False
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            return False
    device = kwargs.get("device")
    if device is None and func in _DEVICE_SECOND:
        device = args[1]
    return device is None or device.type != "cuda"


def _host_bytes(name: str, inputs: list[Argument], results: Any) -> int:
    """What an operation on tensors in host memory reads and writes there: as much as a GPU's
    kernel of the same passes over memory."""
    made = [spec_of(each, None) for each in tree_leaves(results) if isinstance(each, torch.Tensor)]
    given, written = (_as_device_memory(tuple(each)) for each in (inputs, made))
    kernels = lower(Op(name, given, written, 0)).kernels
    return sum(getattr(kernel, "bytes", 0) for kernel in kernels)


def _as_device_memory(argument: Any) -> Any:
    if isinstance(argument, TensorSpec) and argument.shape:
        return TensorSpec(argument.dtype, argument.shape, 0, argument.strides)
    return tuple(map(_as_device_memory, argument)) if isinstance(argument, tuple) else argument


def _is_large(size: Any, kwargs: Any) -> bool:
    # What is made on the meta device has no data of its own accord.
    if not isinstance(size, (list, tuple, torch.Size)) or str(kwargs.get("device")) == "meta":
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return False
    elements = 1
    for length in size:
        elements *= int(length)
    return elements > LARGEST_HOST_FACTORY


# Operations that take functions: flex attention is a kernel of its own on a GPU.


def higher_order(state: RankState, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation on functions, written down as one operation.

    Raises:
        InputError: for one whose shapes torch cannot tell without running it.
    """
    rule = registered_hop_fake_fns.get(func)
    if rule is None:
        names = [known.name() for known in registered_hop_fake_fns]
        raise InputError("operation", func.name(), "cannot be emulated", names)
    state.recorder.launching()
    with state.dataless:
        result = rule(*args, **kwargs)
    stream = state.shim.stream()
    read: Parts = []
    inputs = [_argument(value, state, read) for value in args]
    inputs += [(name, _argument(value, state, read)) for name, value in kwargs.items()]
    for mask in filter(is_block_mask, args):
        share = computed_share(mask, state.values)
        if share is not None:
            inputs.append(("computed_share", share))
    written: Parts = []
    outputs = []
    for tensor in tree_leaves(result):
        if isinstance(tensor, FakeTensor) and tensor._fake_device.type == "cuda":
            storage = state.memory.track(tensor.untyped_storage(), stream)
            outputs.append(spec_of(tensor, storage, written))
    for parts in (read, written):
        state.memory.materialise(parts)
    state.memory.used(read, written, stream)
    state.recorder.operations += 1
    site = state.recorder.sites.current()
    name = f"higher_order.{func.name()}"
    state.recorder.emit(Op(name, tuple(inputs), tuple(outputs), stream, site))
    return result


def _argument(value: Any, state: RankState, parts: Parts) -> Argument:
    if isinstance(value, dict):
        return tuple([(str(name), _argument(part, state, parts)) for name, part in value.items()])
    if isinstance(value, (list, tuple)):
        return tuple([_argument(part, state, parts) for part in value])
    if callable(value) and not isinstance(value, torch.Tensor):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return as_argument(value, state.memory, parts)
