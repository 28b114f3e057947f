"""What torch does with tensors in Python or below its dispatcher, made aware of the device."""

from __future__ import annotations

import collections
import ctypes
import functools
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.values import plain
from trainscout.simulators.virtual_cluster.emulation.values.defaults import GRID_ELEMENTS

from .device_copies import LARGEST_REAL_COPY, DeviceCopies
from .fake import dataless_of_kind, is_special_parameter, without_data, wrap

# Where emulated device addresses begin; nothing of the host lies there.
_DEVICE_BASE = 0x7F00_0000_0000
_HOST_BYTES = 1 << 40
_MAP_NORESERVE = 0x4000
# What a list of Python's plainest numbers holds.
_PLAIN = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}


def install_host_tensors(state: RankState) -> None:
    """Patch tensors, parameters and buffers. Once per process."""
    _patch_reads(state)
    _patch_memory(state)
    _patch_modules(state)


def _patch_reads(state: RankState) -> None:
    copies = DeviceCopies(state)
    # What ``torch.set_default_device`` knows by itself: it meets the functions below, not ours.
    _device_constructors()
    real_tolist, real_numpy, real_tensor = torch.Tensor.tolist, torch.Tensor.numpy, torch.tensor

    def contents(tensor: torch.Tensor, operation: str) -> torch.Tensor:
        with state.recorder:
            return copies.value(tensor.detach(), operation)

    def tolist(self: torch.Tensor) -> Any:
        if isinstance(self, FakeTensor):
            return real_tolist(contents(self, "tolist"))
        return real_tolist(self)

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if not isinstance(self, FakeTensor):
            return real_numpy(self, force=force)
        if self.is_cuda and not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return real_numpy(contents(self, "numpy"), force=force)

    def array(self: torch.Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
        made = numpy(self, force=True)
        made = made if dtype is None else made.astype(dtype, copy=False)
        # Numpy 2 copies no more itself what it asks a copy of.
        return made.copy() if copy else made

    def plain(value: Any) -> Any:
        # A tensor in a list stands for one number there, whatever its dimensions.
        if isinstance(value, FakeTensor):
            return value.item()
        if isinstance(value, (list, tuple)):
            return type(value)([plain(part) for part in value])
        return value

    def lifting(real: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            # Kept by each thread for itself, and the engine's threads begin without.
            torch._C._set_only_lift_cpu_tensors(True)
            # Lists of device scalars are read below the dispatcher.
            lists = (plain(each) if type(each) in (list, tuple) else each for each in args)
            return real(*lists, **kwargs)

        return make

    lifted = lifting(real_tensor)

    def tensor(data: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, FakeTensor):
            return data.detach().clone().to(device=kwargs.get("device"), dtype=kwargs.get("dtype"))
        # The device's storages are of no device in torch's eyes.
        if isinstance(data, torch.UntypedStorage) and data.device.type != "cpu":
            return torch.empty(0, dtype=kwargs.get("dtype"), device="cuda").set_(data)
        made: torch.Tensor = lifted(data, **kwargs)
        if kwargs.get("pin_memory"):
            state.pinned.add(made.untyped_storage())
        return made

    real_format, real_repr = torch.Tensor.__format__, torch.Tensor.__repr__

    def shown(self: torch.Tensor, spec: str) -> str:
        if isinstance(self, FakeTensor) and self.dim() == 0:
            return str(self.item().__format__(spec))
        if isinstance(self, FakeTensor) and not spec:
            return represented(self)
        return str(real_format(self, spec))

    def represented(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if not isinstance(self, FakeTensor):
            return str(real_repr(self, tensor_contents=tensor_contents))
        device, strided = self._fake_device, self.layout is torch.strided
        # Torch shows arguments while it looks for the overload that takes them; what the script
        # left is shown when nobody answers any more.
        unanswered = (
            state.dataless.in_kernel_invocation or not torch._C._len_torch_dispatch_stack()
        )
        if self.numel() > LARGEST_REAL_COPY or unanswered:
            about = f"size={tuple(self.shape)}, dtype={self.dtype}"
            about += "" if strided else f", layout={self.layout}"
            return f"tensor(..., device='{device}', {about})"
        # A sparse tensor's two parts come to the host one by one.
        text: str = real_repr(contents(self, "repr") if strided else self.detach().cpu())
        return text if device.type == "cpu" else f"{text[:-1]}, device='{device}')"

    torch.Tensor.__format__ = shown
    torch.Tensor.__repr__ = FakeTensor.__repr__ = represented
    torch.Tensor.tolist = tolist
    # Its own reads element by element.
    FakeTensor.tolist = tolist
    torch.Tensor.numpy = numpy
    torch.Tensor.__array__ = array
    torch.tensor = functools.wraps(real_tensor)(tensor)
    for owner, name in ((torch, "as_tensor"), (torch, "asarray"), (torch.Tensor, "new_tensor")):
        setattr(owner, name, lifting(getattr(owner, name)))
    made_of = lifting(torch.Tensor.__new__)

    def new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        # What comes from below the dispatcher is a tensor of no class of theirs.
        made: torch.Tensor = made_of(torch.Tensor, *args, **kwargs)
        return made if cls is torch.Tensor else made.as_subclass(cls)

    torch.Tensor.__new__ = staticmethod(new)


class _StoragePart:
    """Bytes of a device's storage, which tensors set on them share with it."""

    def __init__(self, whole: torch.UntypedStorage, places: range) -> None:
        self.whole = whole
        self.places = places
        self.device = torch.device("cuda", torch.cuda.current_device())


def reserved_addresses() -> tuple[int, Any]:
    """Where tensors on the host without data lie: the first of ``2 * _HOST_BYTES`` addresses whose
    memory is there once somebody touches it (foreign code reads and writes by address), and what
    holds them; 0 where the address space is limited (``ulimit -v``), and nothing may be touched.
    """
    reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        first = ctypes.c_char.from_buffer(mmap.mmap(-1, 2 * _HOST_BYTES, flags=reserved))
    except OSError:
        return 0, None
    return ctypes.addressof(first), first


def _patch_memory(state: RankState) -> None:
    real_data = torch.Tensor.data
    real_data_ptr, real_storage_ptr = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr
    real_resize = torch.UntypedStorage.resize_

    def set_data(self: torch.Tensor, new: torch.Tensor) -> None:
        if isinstance(self, FakeTensor) and not isinstance(new, FakeTensor):
            new = without_data(state.dataless, new)
        real_data.__set__(self, new)
        if isinstance(new, FakeTensor) and isinstance(self, FakeTensor):
            self._fake_device = new._fake_device

    host_base, nothing = reserved_addresses()

    def address(storage: Any, nothing: Any = nothing) -> int:
        known = state.memory.find(storage)
        if known is None:
            return host_base + int(storage._cdata) % _HOST_BYTES
        return 0 if known.block is None else _DEVICE_BASE + int(known.block.address)

    def data_ptr(self: torch.Tensor) -> int:
        if not isinstance(self, FakeTensor):
            return int(real_data_ptr(self))
        if not self.numel():
            return 0
        return address(self.untyped_storage()) + int(self.storage_offset() * self.element_size())

    def storage_ptr(self: Any) -> int:
        return address(self) if self.device.type == "meta" else int(real_storage_ptr(self))

    def resize_(self: Any, size: int) -> Any:
        resized = real_resize(self, size)
        if self.device.type == "meta":
            with state.recorder:
                state.memory.resized(self, state.shim.stream())
        return resized

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        copy = self.clone()
        state.pinned.add(copy.untyped_storage())
        return copy

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return self.untyped_storage() in state.pinned

    # Processes share the device's memory as it is.
    real_share, real_is_shared = torch.UntypedStorage.share_memory_, torch.UntypedStorage.is_shared

    def share_memory_(self: Any, *args: Any, **named: Any) -> Any:
        return self if self.device.type == "meta" else real_share(self, *args, **named)

    def is_shared(self: Any) -> bool:
        return self.device.type == "meta" or bool(real_is_shared(self))

    torch.UntypedStorage.share_memory_ = share_memory_
    torch.UntypedStorage.is_shared = is_shared
    real_item, real_set = torch.UntypedStorage.__getitem__, torch.Tensor.set_

    def item(self: Any, place: Any) -> Any:
        if self.device.type != "meta" or not isinstance(place, slice):
            return real_item(self, place)
        return _StoragePart(self, range(self.nbytes())[place])

    def set_(self: torch.Tensor, source: Any = None, *where: Any, **named: Any) -> torch.Tensor:
        if not isinstance(source, _StoragePart):
            return (
                real_set(self, source, *where, **named) if source is not None else real_set(self)
            )
        size = self.element_size()
        held = source.places
        return real_set(self, source.whole, held.start // size, (len(held) // size,), (1,))

    torch.UntypedStorage.__getitem__ = item
    torch.Tensor.set_ = set_
    torch.Tensor.data = property(real_data.__get__, set_data)
    torch.Tensor.data_ptr = data_ptr
    torch.UntypedStorage.data_ptr = storage_ptr
    torch.UntypedStorage.resize_ = resize_
    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = is_pinned


def _patch_modules(state: RankState) -> None:
    parameter_new = torch.nn.Parameter.__new__
    register_buffer = torch.nn.Module.register_buffer
    compatible = torch._has_compatible_shallow_copy_type

    def is_host_data(data: Any) -> bool:
        plain = type(data) is torch.Tensor and data.device.type == "cpu"
        if not plain or state.is_child or not data.numel():
            return False
        # A module that a function makes which torch.func transforms: its tensors have no storage.
        return not torch._C._functorch.is_functorch_wrapped_tensor(data)

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if is_host_data(data):
            data = _seeded(state, data)
        elif isinstance(data, FakeTensor) and is_special_parameter(type(data)):
            # Modules move such a parameter by its data; its type stays.
            data = data.detach()
        if isinstance(data, FakeTensor) and is_special_parameter(cls):
            return dataless_of_kind(cls, data, requires_grad)
        return parameter_new(cls, data, requires_grad)

    def buffer(self: Any, name: str, tensor: Any, persistent: bool = True) -> None:
        if is_host_data(tensor):
            tensor = _seeded(state, tensor)
        register_buffer(self, name, tensor, persistent)

    def has_compatible(tensor: Any, other: Any) -> bool:
        fakes = isinstance(tensor, FakeTensor), isinstance(other, FakeTensor)
        return all(fakes) or (not any(fakes) and bool(compatible(tensor, other)))

    as_subclass = torch.Tensor.as_subclass

    def of_subclass(self: torch.Tensor, cls: Any) -> torch.Tensor:
        # On the device data of a kind of its own is plain: torch's rules for shapes would call
        # methods that such kinds have of their own.
        return self if isinstance(self, FakeTensor) else as_subclass(self, cls)

    torch.Tensor.as_subclass = of_subclass
    copied = torch.Tensor.__deepcopy__

    def deepcopy(self: torch.Tensor, memo: Any) -> torch.Tensor:
        made: torch.Tensor = copied(self, memo)
        if isinstance(self, FakeTensor):
            # Storages are copied below the dispatcher: what is known of one is of its copy.
            state.values.observe(torch.ops.aten.copy_.default, (made, self), {}, made)
        return made

    torch.Tensor.__deepcopy__ = deepcopy
    make_subclass = torch.Tensor._make_subclass

    def of_kind(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if is_host_data(data) and is_special_parameter(cls):
            data = _seeded(state, data)
        elif issubclass(cls, torch.nn.parameter.UninitializedTensorMixin) and not state.is_child:
            # Lazy modules go to the device before they know their shapes.
            data = data if isinstance(data, FakeTensor) else without_data(state.dataless, data)
        if isinstance(data, FakeTensor) and not kwargs:
            return dataless_of_kind(cls, data, *args)
        return make_subclass(cls, data, *args, **kwargs)

    torch.Tensor._make_subclass = staticmethod(of_kind)
    fake_new = FakeTensor.__new__

    def fake(cls: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        # A parameter of a model is made anew by its type: a parameter again. Loaders hand on what
        # stands in the old one's ``__dict__``, which here is the emulation's.
        if isinstance(first, torch.Tensor):
            return torch.nn.Parameter(first, kwargs.get("requires_grad", True))
        return fake_new(cls, first, *args, **kwargs)

    FakeTensor.__new__ = staticmethod(fake)
    swap = torch.utils.swap_tensors

    def swap_tensors(first: Any, second: Any) -> None:
        # Module.to and the like go on with the first; a swap would refuse what others refer to.
        both = isinstance(first, FakeTensor) and isinstance(second, FakeTensor)
        # Data of the meta device is of another type, which ``data`` does not take.
        if both and (first.device.type == "meta") == (second.device.type == "meta"):
            first.data = second.data
            if first.is_leaf:
                first.requires_grad_(second.requires_grad)
            return
        swap(first, second)

    materialize = torch.nn.parameter.UninitializedTensorMixin.materialize

    def materialized(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        # What becomes a parameter of torch's own type would not be on the device any more.
        if not isinstance(self, FakeTensor):
            materialize(self, shape, device, dtype)
            return
        parameter = self.cls_to_become is torch.nn.Parameter
        device = self._fake_device if device is None else device
        self.data = torch.empty(shape, device=device, dtype=dtype or self.data.dtype)
        self.__class__ = FakeTensor
        self._is_param = parameter

    torch.nn.parameter.UninitializedTensorMixin.materialize = materialized
    torch.utils.swap_tensors = swap_tensors
    torch.nn.Parameter.__new__ = staticmethod(new)
    torch.nn.Module.register_buffer = buffer
    torch._has_compatible_shallow_copy_type = has_compatible


def _seeded(state: RankState, data: torch.Tensor) -> FakeTensor:
    made = without_data(state.dataless, data)
    state.values.seed(made, data.detach())
    return made


# Saving and loading: tensors without data are saved as shapes, small ones that are known exactly
# with their values, and loaded without data again.


def install_checkpoints(state: RankState) -> None:
    """Let ``torch.save`` and ``torch.load`` work. Once per process."""
    rebuild = torch._utils._rebuild_tensor_v2
    placed = _Placed()

    @functools.wraps(rebuild)
    def rebuilt(
        storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool, *rest: Any
    ) -> Any:
        if not isinstance(storage, str):
            return rebuild(storage, offset, size, stride, requires_grad, *rest)
        _, *values = rest
        dtype, _, saved_on = storage.partition(" ")
        kind = getattr(torch, dtype)
        meta = torch.empty_strided(size, stride, dtype=kind, device="meta")
        made: torch.Tensor = wrap(state.dataless, meta, torch.device("cpu"))
        if values:
            state.values.seed(made, plain.tensor(values[0], dtype=kind))
        device = placed.device(saved_on)
        if device.type == "cuda":
            made = made.to(device)
        return made.requires_grad_(requires_grad)

    def reduce(self: FakeTensor, protocol: Any) -> Any:
        if isinstance(self, torch.nn.Parameter):
            hooks: Any = collections.OrderedDict()
            whole = (self.detach(), self.requires_grad, hooks)
            return (torch._utils._rebuild_parameter, whole)
        # By what rebuilds any tensor: readers that trust few names trust this one.
        storage = f"{str(self.dtype).removeprefix('torch.')} {self.fake_device}"
        shape = (0, tuple(self.shape), tuple(self.stride()), self.requires_grad)
        saved: list[Any] = [storage, *shape, collections.OrderedDict()]
        if self.numel() <= GRID_ELEMENTS and self.dtype in _PLAIN:
            reading = state.values.read(self, "save")
            if reading.grade == "exact":
                saved.append(reading.value.tolist())
        return (torch._utils._rebuild_tensor_v2, tuple(saved))

    def copied(self: FakeTensor) -> torch.Tensor:
        """Another tensor of the same memory."""
        made = self.detach()
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(made, self.requires_grad)
        return made.requires_grad_(self.requires_grad)

    torch._utils._rebuild_tensor_v2 = rebuilt
    FakeTensor.__reduce_ex__ = reduce
    FakeTensor.__copy__ = copied
    torch.load = _load(torch.load, placed)


class _Placed:
    """Where the file being read has its tensors put, by ``torch.load``'s ``map_location``."""

    def __init__(self) -> None:
        self.map_location: Any = None

    def device(self, saved_on: str) -> torch.device:
        chosen = self.map_location
        if isinstance(chosen, dict):
            chosen = chosen.get(saved_on, saved_on)
        elif callable(chosen):
            storage = chosen(_Storage(torch.device("cpu")), saved_on)
            chosen = None if storage is None else storage.device
        return torch.device(saved_on if chosen is None else chosen)


@dataclass(frozen=True)
class _Storage:
    """What a function given as ``map_location`` is asked to move: nothing but its place."""

    device: torch.device

    def cpu(self) -> _Storage:
        return _Storage(torch.device("cpu"))

    def cuda(self, device: Any = None, **kwargs: Any) -> _Storage:
        if device is None:
            device = torch.cuda.current_device()
        return _Storage(torch.device("cuda", device) if isinstance(device, int) else device)


def _load(original: Any, placed: _Placed) -> Any:
    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Contents are read into host memory, which is real; the device takes copies.
        placed.map_location = map_location
        try:
            loaded = original(f, lambda storage, location: storage, *args, **kwargs)
            device = placed.device("cpu")
        finally:
            # What is unpickled without it lies where it lay.
            placed.map_location = None
        if device.type != "cuda":
            return loaded
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), loaded)

    return load
