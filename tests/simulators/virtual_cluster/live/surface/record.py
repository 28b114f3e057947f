"""Runs a table of calls as one rank: what each returns, and on the host what it launches.

``SURFACE_OF_GLOO`` is set where torch's own process groups run on the host; else the rank is
emulated, and its trace says what it launches.
"""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor, placement_types
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REAL = "SURFACE_OF_GLOO" in os.environ
DEVICE = "cpu" if REAL else "cuda"
# What operations are called, and what kind of communication they are.
_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all",
    "isend": "send", "irecv": "recv",
    **{
        kind: kind
        for kind in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast",
                     "gather", "scatter", "reduce", "send", "recv", "barrier")
    },
}  # fmt: skip
# Between hosts when emulated: no device takes part.
_OF_HOSTS = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list", "_verify_params_across_processes"),
)


class Launched(TorchDispatchMode):
    """Communications as torch's dispatcher sees them: kind, members, bytes given and got."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # What it is made of comes back here.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        if space == "c10d":
            self._note(name.removeprefix("_"), args)
        elif space == "_c10d_functional":
            self._note_functional(name, args, (kwargs or {}).get("out", result))
        return result

    def _note(self, name: str, args: Any) -> None:
        kind = next((kind for word, kind in _KINDS.items() if name.startswith(word)), None)
        boxed = [each for each in args if isinstance(each, torch.ScriptObject)]
        if kind is None:
            return
        size = dist.ProcessGroup.unbox(boxed[0]).size()
        if kind == "barrier":
            self.calls.append((kind, size, 0, 0))
        elif kind in ("all_reduce", "broadcast", "reduce", "send", "recv"):
            for each in args[0]:
                self._add(kind, size, each, each)
        elif "coalesced" in name:
            got = zip(*args[0], strict=True) if name.startswith("allgather_c") else args[0]
            for one, other in zip(args[1], got, strict=True):
                self._add(kind, size, one, other)
        else:
            self._add(kind, size, args[1], args[0])

    def _note_functional(self, name: str, args: Any, result: Any) -> None:
        kind = next((kind for word, kind in _KINDS.items() if name.startswith(word)), None)
        names = [each for each in args if isinstance(each, str)]
        if name == "batch_p2p_ops":
            size = distributed_c10d._resolve_process_group(args[-1]).size()
            for each, tensor in zip(args[0], args[3], strict=True):
                self._add(_KINDS[each], size, tensor, tensor)
        elif kind is not None:
            size = distributed_c10d._resolve_process_group(names[-1]).size()
            listed = isinstance(args[0], (list, tuple))
            pairs = zip(args[0], result, strict=True) if listed else [(args[0], result)]
            for one, other in pairs:
                self._add(kind, size, one, other)

    def _add(self, kind: str, size: int, given: Any, got: Any) -> None:
        sides = [sum(each.nbytes for each in tree_leaves(side)) for side in (given, got)]
        self.calls.append((kind, size, sides[0] * (kind != "recv"), sides[1] * (kind != "send")))

    @contextmanager
    def as_emulated(self) -> Iterator[None]:
        """What is launched otherwise on the host is noted as it would be on devices."""
        kept = {name: getattr(distributed_c10d, name, None) for name in _OF_HOSTS}
        kept["_verify_params_across_processes"] = dist._verify_params_across_processes
        moved = placement_types.shard_dim_alltoall

        def quietly(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                known = list(self.calls)
                result = call(*args, **kwargs)
                self.calls[:] = known
                return result

            return called

        def moves(given: Any, gather: int, shard: int, mesh: Any, dim: int) -> Any:
            result = quietly(moved)(given, gather, shard, mesh, dim)
            self._add("all_to_all", mesh.size(dim), given, given)
            return result

        try:
            for name, call in kept.items():
                for module in (dist, distributed_c10d, dist.utils):
                    if hasattr(module, name):
                        setattr(module, name, quietly(call))
            placement_types.shard_dim_alltoall = moves
            with self:
                yield
        finally:
            for name, call in kept.items():
                for module in (dist, distributed_c10d, dist.utils):
                    if hasattr(module, name):
                        setattr(module, name, call)
            placement_types.shard_dim_alltoall = moved


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.to_local() if isinstance(value, DTensor) else value
        value = value.wait() if hasattr(value, "wait") else value
        return [list(value.shape), value.tolist()]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return value if isinstance(value, (int, float, str, type(None))) else repr(value)


_launched = Launched()


def note(kind: str, given: Any, got: Any) -> None:
    """Of what the host's groups have no form of: what is launched on devices."""
    _launched._add(kind, dist.get_world_size(), given, got)


def run(cases: Mapping[str, Callable[[], Any]], folder: Path) -> None:
    """Call each and write ``rank-<n>.json`` into ``folder``."""
    answers = {}
    for name in cases:
        _launched.calls.clear()
        if not REAL:
            torch.cuda.nvtx.range_push(f"case {name}")
        with _launched.as_emulated() if REAL else nullcontext():
            try:
                answers[name] = {"values": _plain(cases[name]())}
            except Exception:
                # Those that wait for this rank in the same call would wait for ever.
                traceback.print_exc()
                answers[name] = {"values": traceback.format_exc(limit=1)}
        answers[name]["launched"] = list(_launched.calls)
        if not REAL:
            torch.cuda.nvtx.range_pop()
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(answers))


def begin(size: int) -> None:
    """Be a rank, on the host one of ``size`` processes, of which the first waits for all."""
    if not REAL:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        torch.cuda.set_device(dist.get_rank())
        return
    meet = os.path.join(tempfile.mkdtemp(), "store")
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
            torch.set_num_threads(1)
            dist.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=size)
            return
        children.append(child)
    os._exit(int(max([os.waitpid(child, 0)[1] for child in children]) > 0))
