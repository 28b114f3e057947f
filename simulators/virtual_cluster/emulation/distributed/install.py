"""Puts one rank's view of a large job where ``torch.distributed`` is."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import _jit_internal
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.tensors.fake import without_data
from trainscout.simulators.virtual_cluster.emulation.tensors.operations import SYMMETRIC

from .group import SymmetricMemory, VirtualBackend, VirtualGroup
from .launches import Launches
from .objects import ObjectCollectives
from .store import VirtualStore
from .work import HostWork, VirtualWork

# Of symmetric memory: a product of what is gathered, or whose sum is scattered (async TP).
_FUSED_PRODUCTS = (
    *("fused_all_gather_matmul", "fused_all_gather_scaled_matmul"),
    *("fused_matmul_reduce_scatter", "fused_scaled_matmul_reduce_scatter"),
)

# Functional collectives, which come through the dispatcher as operations with results.
_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
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
        if name == "batch_p2p_ops":
            return self._transfers(*args)
        if name in SYMMETRIC:
            return self._symmetric(SYMMETRIC[name], func, types, args, kwargs)
        in_place = name.endswith("_")
        base = name.removesuffix("_").removesuffix("_out").removesuffix("_coalesced")
        if base not in _KINDS:
            raise InputError("operation", str(func), "is no collective that is emulated", _KINDS)
        group = _group(args[-1])
        inputs = list(args[0]) if isinstance(args[0], (list, tuple)) else [args[0]]
        if all(tensor.is_meta and not isinstance(tensor, FakeTensor) for tensor in inputs):
            # A meta device's have shapes alone: torch answers, and nothing is sent.
            return func(*args, **kwargs)
        if in_place:
            result: Any = args[0]
        elif "out" in kwargs:
            result = kwargs["out"]
        else:
            result = self._results(func, types, args, kwargs)
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        for source, made in zip(inputs, outputs, strict=True):
            self._launch(base, group, source, made, args)
        return result

    @staticmethod
    def shard_dim_alltoall(given: Any, gather_dim: int, shard_dim: int, named: Any) -> Any:
        """DTensor's own: cut in another dimension than before, with the copies and the wait of
        torch's (``shard_dim_alltoall`` in c10d/Functional.cpp)."""
        group = _group(named)
        inputs = [part.contiguous() for part in given.chunk(group.size(), shard_dim)]
        outputs = [torch.empty_like(part) for part in inputs]
        work = group.launches.collective("all_to_all", inputs, outputs)
        if work is not None:
            work.wait()
        return torch.cat(outputs, gather_dim)

    def restart(self) -> None:
        """A new trace begins: nothing is under way."""
        self._pending.clear()

    def _launch(self, base: str, group: VirtualGroup, source: Any, made: Any, args: Any) -> None:
        splits_in = splits_out = None
        root = None
        reduction = "sum"
        if base == "all_to_all_single":
            row = source.numel() // source.shape[0] if source.shape[0] else 1
            splits_out = tuple(int(length) * row for length in args[1])
            splits_in = tuple(int(length) * row for length in args[2])
        elif base == "broadcast":
            root = int(args[1])
        elif base in ("all_reduce", "reduce_scatter_tensor"):
            reduction = str(args[1]).lower()
        if base == "all_reduce" and made is not source and not isinstance(made, FakeTensor):
            made.copy_(source)
        work = group.launches.collective(
            _KINDS[base],
            [source],
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

    def _symmetric(self, kind: str, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        named = zip(func._schema.arguments, args, strict=False)
        given = {**{argument.name: value for argument, value in named}, **kwargs}
        made = given.get("out", given.get("output"))
        if made is None:
            written = func._schema.is_mutable
            made = args[0] if written else self._results(func, types, args, kwargs)
        work = _group(given["group_name"]).launches.collective(
            kind, [args[0]], [made], reduction=given.get("reduce_op", "sum")
        )
        if work is not None:
            # It is a kernel of the stream's own.
            work.wait()
        return made

    def _transfers(
        self, names: Any, peers: Any, tags: Any, tensors: list[Any], group: Any
    ) -> list[Any]:
        made = _group(group)
        made.launches.begin_batch()
        for name, peer, tag, tensor in zip(names, peers, tags, tensors, strict=True):
            self._transfer(name, tensor, peer, tag, made)
        made.launches.end_batch()
        return tensors

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


# NCCL's own, which a torch without NCCL does not know.
DEFAULT_TIMEOUT = timedelta(minutes=10)


def install_distributed(state: RankState) -> None:
    """``torch.distributed`` works, with whatever backend the script names."""
    functional = FunctionalCollectives(state)
    state.functional = functional
    objects = ObjectCollectives(state)
    replacements: dict[str, Any] = {
        "init_process_group": _init_process_group(distributed_c10d.init_process_group, state),
        "_new_process_group_helper": _new_group_helper(state),
        "_new_group_with_tag": _members_only(distributed_c10d._new_group_with_tag, state),
        "_process_group_name": _group_names(),
        "batch_isend_irecv": _batch_isend_irecv,
        "split_group": _split_group,
        "is_nccl_available": lambda: True,
        "is_gloo_available": lambda: True,
        "is_backend_available": lambda backend: True,
        "_store_based_barrier": lambda *args, **kwargs: None,
        **(stores := _stores(state)),
        "monitored_barrier": lambda *args, **kwargs: None,
        "_set_pg_timeout": lambda timeout, group=None: None,
        "_verify_params_across_processes": lambda group, params, logger=None: None,
        "all_gather_object": objects.all_gather_object,
        "gather_object": objects.gather_object,
        "broadcast_object_list": objects.broadcast_object_list,
        "scatter_object_list": objects.scatter_object_list,
        "send_object_list": objects.send_object_list,
        "recv_object_list": objects.recv_object_list,
    }
    for module in (dist, distributed_c10d, dist.utils, dist.device_mesh):
        for name, value in replacements.items():
            if hasattr(module, name):
                setattr(module, name, value)
    # The function ``dist.rendezvous`` hides its module.
    for module in (sys.modules["torch.distributed.rendezvous"], torch._C._distributed_c10d):
        for name, value in stores.items():
            setattr(module, name, value)
    for module in (dist, distributed_c10d):
        module.ProcessGroupNCCL = VirtualBackend
    _patch_futures(state)
    _patch_reducer(state)
    _patch_symmetric_memory()
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = lambda timeout, group=None: None


class _OnDevice(torch.Tensor):
    """Nothing but memory on a device, of which there is none."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def _patch_futures(state: RankState) -> None:
    """A future records its events on the devices that hold its tensors; let it believe so."""
    extract, then = _jit_internal._extract_tensors, torch._C.Future.then
    # Futures hold their tensors' memory weakly, so these must stay.
    tensors = [
        torch.Tensor._make_wrapper_subclass(_OnDevice, (1,), device=torch.device("cuda", index))
        for index in range(state.local_world_size)
    ]
    # Whether what a callback returned is looked through next, to complete its future.
    completing = [False]

    def extract_tensors(value: Any) -> Any:
        if state.notices.future_of is None and not completing[0]:
            return extract(value)
        completing[0] = False
        return [tensors[state.shim.device()]]

    def then_on_device(self: Any, callback: Any) -> Any:
        def called(future: Any) -> Any:
            result = callback(future)
            completing[0] = True
            return result

        return then(self, called)

    _jit_internal._extract_tensors = extract_tensors
    # What it returns is of the class below ``torch.futures.Future``.
    torch._C.Future.then = then_on_device


def _patch_reducer(state: RankState) -> None:
    """DistributedDataParallel's ranks agree on buckets by a broadcast; all would choose alike."""
    rebuild = dist.Reducer._rebuild_buckets

    def rebuild_buckets(self: Any) -> bool:
        with state.agreement():
            return bool(rebuild(self))

    set_static_graph = dist.Reducer._set_static_graph

    def set_and_go_on(self: Any) -> None:
        set_static_graph(self)
        # In the first step all is reduced at its end, in the second the order of gradients is
        # learnt; only before the third are buckets cut by it (autograd_hook in reducer.cpp).
        if state.recorder.most_steps == 2:
            state.recorder.most_steps = 3

    log = dist.Logger.set_construction_data_and_log

    def log_construction(self: Any, *args: Any) -> None:
        # It looks for a Gloo of torch's own, to say how many threads that has.
        with contextlib.suppress(RuntimeError):
            log(self, *args)

    dist.Reducer._rebuild_buckets = rebuild_buckets
    dist.Reducer._set_static_graph = set_and_go_on
    dist.Logger.set_construction_data_and_log = log_construction


def _patch_symmetric_memory() -> None:
    """Memory that ranks of a node read where it is: a peer's stands there as one's own kind.

    Products fused with what ranks gather or sum are what they do one after the other: how much of
    it hides behind the product is not modelled.
    """
    module: Any = importlib.import_module("torch.distributed._symmetric_memory")
    for name in _FUSED_PRODUCTS:
        one_by_one = getattr(module, f"_{name}_fallback")
        module.lib.impl(name, one_by_one, "CompositeImplicitAutograd")

    def empty(*size: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def rendezvous(tensor: torch.Tensor, group: Any) -> SymmetricMemory:
        return SymmetricMemory(tensor, _group(getattr(group, "group_name", group)))

    module.empty, module.rendezvous = empty, rendezvous


def _stores(state: RankState) -> dict[str, Any]:
    """Classes of stores that ranks meet at: by the port, or by the file."""

    class TCPStore(VirtualStore):
        def __init__(self, host_name: str = "", port: int = 0, *_: Any, **__: Any) -> None:
            super().__init__(state, port)
            self.host, self.port = host_name, port

    class FileStore(VirtualStore):
        def __init__(self, file_name: str, world_size: int = -1) -> None:
            super().__init__(state, file_name)
            self.path = file_name

    return {"TCPStore": TCPStore, "FileStore": FileStore}


def _init_process_group(original: Any, state: RankState) -> Any:
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
        device_id: Any = None,
        _ranks: Any = None,
    ) -> None:
        # No store to meet at and no device to bind: there is nobody to connect to.
        original(
            backend=backend or "cpu:gloo,cuda:nccl",
            timeout=timeout or DEFAULT_TIMEOUT,
            world_size=world_size if world_size > 0 else int(os.environ["WORLD_SIZE"]),
            rank=rank if rank >= 0 else int(os.environ["RANK"]),
            store=store if store is not None else VirtualStore(state),
            group_name=group_name,
            _ranks=_ranks,
        )

    return init_process_group


def _new_group_helper(state: RankState) -> Any:
    def new_process_group_helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: Any,
        store: Any,
        group_name: str,
        backend_options: Any = None,
        timeout: Any = None,
        pg_tag: Any = None,
        device_id: Any = None,
        group_desc: str | None = None,
    ) -> tuple[Any, Any]:
        ranks = tuple(global_ranks_in_group) or tuple(range(group_size))
        if state.rank not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER, None
        if pg_tag not in (None, ""):
            existing = distributed_c10d._find_pg_by_ranks_and_tag(pg_tag, list(ranks))
            if existing:
                return existing, distributed_c10d._world.pg_map[existing][1]
        description = group_desc or "undefined"
        name = str(backend)
        launches = Launches(state, state.numbers.group(group_name), description, ranks)
        group = VirtualGroup(launches, "gloo" if name == "gloo" else "nccl")
        placeholder = torch._C._distributed_c10d.FakeProcessGroup._create_internal(
            group_rank, group_size
        )
        for device in _devices(name):
            group._register_backend(
                torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, placeholder
            )
        group._set_group_name(group_name)
        group._set_group_desc(description)
        prefixed = dist.PrefixStore(f"{group_name}/", store)
        distributed_c10d._register_pg_in_world(
            group,
            backend_name=backend,
            store=prefixed,
            group_name=group_name,
            backend_config=str(distributed_c10d.BackendConfig(backend)),
            user_tag=None if pg_tag in (None, "") else pg_tag,
            add_to_default_tag=pg_tag in (None, ""),
        )
        return group, prefixed

    return new_process_group_helper


def _devices(backend: str) -> tuple[str, ...]:
    if ":" in backend:
        return tuple(part.partition(":")[0] for part in backend.split(","))
    return ("cpu",) if backend == "gloo" else ("cuda",)


def _members_only(original: Any, state: RankState) -> Any:
    """Groups of other ranks cost nothing but their number, of which large jobs have many."""

    def new_group_with_tag(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ranks is not None and state.rank not in ranks:
            if not kwargs.get("use_local_synchronization", False):
                distributed_c10d._world.group_count += 1
            return dist.GroupMember.NON_GROUP_MEMBER
        timeout = args[0] if args else kwargs.pop("timeout", None)
        return original(ranks, timeout or DEFAULT_TIMEOUT, *args[1:], **kwargs)

    return new_group_with_tag


def _split_group(
    parent_pg: Any = None,
    split_ranks: list[list[int]] | None = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **_: Any,
) -> Any:
    """Groups cut from a group, by positions in it; the one this rank belongs to, or None."""
    members = dist.get_process_group_ranks(parent_pg)
    own = None
    for positions in split_ranks or []:
        ranks = [members[position] for position in positions]
        made = dist.new_group(ranks, group_desc=group_desc, use_local_synchronization=True)
        if dist.get_rank() in ranks:
            own = made
    return own


def _group_names() -> Any:
    """Names that all members give a group, however many groups each knows of."""
    made: Counter[tuple[int, ...]] = Counter()

    def process_group_name(ranks: list[int], use_hashed_name: bool) -> str:
        world = distributed_c10d._world
        if not use_hashed_name:
            world.group_count += 1
            return str(world.group_count - 1)
        if not world.pg_names:
            made.clear()
        key = tuple(ranks)
        made[key] += 1
        text = "_".join(str(rank) for rank in (*key, made[key]))
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    return process_group_name


def _batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
    distributed_c10d._check_p2p_op_list(p2p_op_list)
    group = p2p_op_list[0].group or distributed_c10d._get_default_group()
    group._start_coalescing()
    for operation in p2p_op_list:
        sends = operation.op.__name__ == "isend"
        transfer = group.send if sends else group.recv
        transfer([operation.tensor], operation.group_peer, operation.tag)
    return [group._end_coalescing()]
