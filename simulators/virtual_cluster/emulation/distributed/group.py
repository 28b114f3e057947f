"""A process group whose other members are not here."""

from __future__ import annotations

import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend

from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal

from .combine import REDUCTIONS
from .launches import Launches
from .work import HostWork, VirtualWork, WorkBatch

Tensors = list[torch.Tensor]
ROOTED = ("broadcast", "reduce", "gather", "scatter")


class NcclOptions(C10dBackend.Options):
    """What scripts set for NCCL's groups; none of it changes what is launched."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl")
        self._timeout = timedelta(minutes=10)
        self.is_high_priority_stream = is_high_priority_stream
        # Whatever is set there is kept, as newer releases of NCCL have more of it.
        self.config = SimpleNamespace(blocking=1, cga_cluster_size=4, min_ctas=1, max_ctas=32)
        self.split_from, self.split_color = None, 0


class VirtualBackend:
    """What scripts ask of a group's backend, and ``torch.distributed.ProcessGroupNCCL``."""

    Options = NcclOptions

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False

    def __init__(self, name: str, rank: int, size: int, options: Any = None) -> None:
        if not isinstance(name, str):
            raise refusal("ProcessGroupNCCL", "made by hand of a store", "new_group")
        self._name, self._rank, self._size = name, rank, size
        self.options = NcclOptions()

    def name(self) -> str:
        """``nccl`` or ``gloo``."""
        return self._name

    def rank(self) -> int:
        """This rank's index in the group."""
        return self._rank

    def size(self) -> int:
        """Members of the group."""
        return self._size

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.options._timeout = timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        return None

    def _is_initialized(self) -> bool:
        return True

    def comm_split_count(self) -> int:
        """Communicators split off this one."""
        return 0

    def eager_connect_single_device(self, device: Any) -> None:
        """There is nobody to connect to."""

    def shutdown(self) -> None:
        """Nothing runs."""

    abort = shutdown


def _in_place(kind: str) -> Any:
    """A collective of each tensor by itself, launched as one group."""

    def launch(group: VirtualGroup, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensors = _listed(tensors)
        return group._many(kind, [([each], [each]) for each in tensors], opts, tensors)

    return launch


def _paired(kind: str) -> Any:
    """All members' parts in one tensor; of several such, launched as one group."""

    def launch(group: VirtualGroup, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        outputs = _listed(outputs)
        pairs = [([each], [made]) for made, each in zip(outputs, _listed(inputs), strict=True)]
        return group._many(kind, pairs, opts, outputs)

    return launch


class VirtualGroup(dist.ProcessGroup):
    """Launches what it is asked for; ``wait`` on the handle orders streams.

    Args:
        launches: writes communications of this group down.
        backend: name of the backend the script chose.
    """

    def __init__(self, launches: Launches, backend: str) -> None:
        super().__init__(launches.position, launches.size)
        self.launches = launches
        self._virtual_backend = VirtualBackend(backend, launches.position, launches.size)
        self._batch: list[VirtualWork | HostWork] | None = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """As the script chose it."""
        return self._virtual_backend.name()

    def _get_backend_name(self) -> str:
        return self._virtual_backend.name()

    def _get_backend(self, device: Any) -> VirtualBackend:
        return self._virtual_backend

    def _set_sequence_number_for_group(self) -> None:
        return None

    def shutdown(self) -> None:
        """Nothing runs."""

    abort = shutdown

    allreduce = allreduce_coalesced = _in_place("all_reduce")
    broadcast = _in_place("broadcast")
    reduce = _in_place("reduce")

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every member's tensor reaches all, as a list."""
        inputs = _listed(inputs)
        if outputs and isinstance(outputs[0], torch.Tensor):
            outputs = [outputs]
        pairs = [([source], made) for made, source in zip(outputs, inputs, strict=True)]
        return self._many("all_gather", pairs, opts, outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> Any:
        """Lists of tensors gathered: one output list per member."""
        pairs = [([source], [made[at] for made in outputs]) for at, source in enumerate(inputs)]
        return self._many("all_gather", pairs, opts, outputs)

    all_gather_single = _allgather_base = _paired("all_gather")
    all_gather_single_coalesced = allgather_into_tensor_coalesced = all_gather_single

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        """This member's part of the reduction of lists."""
        outputs = _listed(outputs)
        if inputs and isinstance(inputs[0], torch.Tensor):
            inputs = [inputs]
        pairs = [(sources, [made]) for made, sources in zip(outputs, inputs, strict=True)]
        return self._many("reduce_scatter", pairs, opts, outputs)

    reduce_scatter_single = _reduce_scatter_base = _paired("reduce_scatter")
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = reduce_scatter_single

    def all_to_all_single(
        self, output: Any, input: Any, splits_out: Any, splits_in: Any, opts: Any = None
    ) -> Any:
        """Parts of one tensor to each member; the splits are in rows."""
        row = input.numel() // input.shape[0] if input.dim() and input.shape[0] else 1
        made = output.numel() // output.shape[0] if output.dim() and output.shape[0] else row
        return self._done(
            self.launches.collective(
                "all_to_all",
                [input],
                [output],
                splits_in=tuple(int(length) * row for length in splits_in) or None,
                splits_out=tuple(int(length) * made for length in splits_out) or None,
            ),
            [output],
        )

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """One tensor to each member."""
        work = self.launches.collective(
            "all_to_all",
            inputs,
            outputs,
            splits_in=tuple(tensor.numel() for tensor in inputs),
            splits_out=tuple(tensor.numel() for tensor in outputs),
        )
        return self._done(work, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        """Every member's tensor reaches the root."""
        made = outputs[0] if outputs and not isinstance(outputs[0], torch.Tensor) else outputs
        return self._many("gather", [(_listed(inputs), list(made))], opts, outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Any:
        """One of the root's tensors reaches each member."""
        shares = inputs[0] if inputs and not isinstance(inputs[0], torch.Tensor) else inputs
        return self._many("scatter", [(list(shares), _listed(outputs))], opts, outputs)

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Any:
        """A tensor to one member."""
        return self._transfer("send", tensors[0], destination)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        """A tensor from one member."""
        return self._transfer("recv", tensors[0], source)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Every member arrives before any goes on; the host waits."""
        if self._virtual_backend.name() == "gloo":
            self.launches.meet()
            return HostWork()
        return self._done(self.launches.collective("barrier", [], [], blocks_host=True), [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says who is missing; here nobody is."""
        self.barrier()

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []
        self.launches.begin_batch()

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._batch = self._batch or [], None
        self.launches.end_batch()
        return WorkBatch(works)

    def _transfer(self, kind: str, tensor: torch.Tensor, peer: int) -> Any:
        return self._done(self.launches.transfer(kind, tensor, peer), [tensor])

    def _many(self, kind: str, pairs: Any, opts: Any, result: Any) -> Any:
        reduction = _reduction(opts)
        root = None
        if kind in ROOTED:
            root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        works = [
            self.launches.collective(kind, sources, made, root=root, reduction=reduction)
            for sources, made in pairs
        ]
        if len(works) == 1:
            return self._done(works[0], result)
        return WorkBatch([self._done(work, result) for work in works if work is not None])

    def _done(self, work: VirtualWork | HostWork | None, result: Any) -> Any:
        if work is None:
            return HostWork(result)
        if self._batch is not None:
            self._batch.append(work)
        return work


class SymmetricMemory:
    """What ``rendezvous`` hands out for a tensor that all members have."""

    multicast_ptr = 0

    def __init__(self, tensor: torch.Tensor, group: VirtualGroup) -> None:
        self._tensor, self._group = tensor, group
        self.rank, self.world_size = group.launches.position, group.launches.size
        self.buffer_size, self.device = tensor.nbytes, tensor.device

    def get_buffer(
        self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        """A member's part, of this shape: a view of what this one has."""
        flat = self._tensor.flatten().view(dtype)
        return flat[storage_offset : storage_offset + math.prod(sizes)].view(sizes)

    def get_remote_tensor(self, peer: int, sizes: Any, dtype: torch.dtype) -> torch.Tensor:
        """A peer's, as ``get_buffer``."""
        return self.get_buffer(peer, sizes, dtype)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """A kernel that ends when all members have come."""
        if (work := self._group.launches.collective("barrier", [], [])) is not None:
            work.wait()

    def put_signal(self, rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Too little to price."""

    wait_signal = put_signal


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, torch.Tensor) else value


def _reduction(opts: Any) -> str:
    operation = getattr(opts, "reduceOp", opts)
    name = str(getattr(operation, "op", operation)).rpartition(".")[2].lower()
    return name if name in REDUCTIONS else "sum"
