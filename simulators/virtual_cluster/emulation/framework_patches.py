"""What frameworks ask of other ranks or of data, which one rank without data cannot meet.

Each patch is applied to a framework's module when the script imports it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.question.errors import InputError

from .launch import ray_workers
from .vendor.refuse import refusal

if TYPE_CHECKING:
    from .rank_state import RankState

Patch = Callable[[ModuleType], None]


def _agrees_on(*checks: str) -> Patch:
    """Whether all ranks' parts together are a whole, or are what rank 0 has: it is so."""
    return lambda module: vars(module).update(dict.fromkeys(checks, lambda *_, **__: None))


def _deepspeed_operations(module: ModuleType) -> None:
    # What DeepSpeed compiles when it is first used, which wants a CUDA toolkit, is here; what its
    # CPU Adam does to the host's memory is what PyTorch's does.
    from torch import _fused_adam_, _utils, tensor

    from .vendor.compiled_kernels import multi_tensor_adam

    def adam_update(_: Any, step: int, *args: Any) -> int:
        *_, weights, gradients, first, second = args
        lists = ([each] for each in (weights, gradients, first, second))
        rates = {"lr": 0.0, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
        flags = {"amsgrad": False, "maximize": False}
        _fused_adam_(*lists, [], [tensor(float(step))], **rates, **flags)
        return 0

    calls = ("create_adam", "destroy_adam", "adam_rollback")
    made = {
        "fused_adam": SimpleNamespace(multi_tensor_adam=multi_tensor_adam),
        "cpu_adam": SimpleNamespace(
            **dict.fromkeys(calls, lambda *_, **__: 0), adam_update=adam_update
        ),
        "utils": SimpleNamespace(
            flatten=_utils._flatten_dense_tensors, unflatten=_utils._unflatten_dense_tensors
        ),
    }
    build = module.OpBuilder.load

    def load(self: Any, verbose: bool = False) -> Any:
        return made[self.name] if self.name in made else build(self, verbose)

    module.OpBuilder.load = load


def _megatron_graphs(module: ModuleType) -> None:
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensor

    if not hasattr(module, "ArgMetadata"):  # as in 0.12
        return
    begin = module.ArgMetadata.__init__

    def init(self: Any, arg: Any) -> None:
        # It looks for tensors by their exact type.
        begin(self, arg)
        self.type = Tensor if self.type is FakeTensor else self.type

    module.ArgMetadata.__init__ = init


def _megatron_groups(module: ModuleType) -> None:
    """All groups at once: made rank by rank, those of 16,384 are a tenth of a rank's trace."""
    import numpy as np

    name = "generate_masked_orthogonal_rank_groups"
    if not hasattr(module, name):  # not in every release
        return
    generate = getattr(module, name)

    def groups(world_size: int, parallel_size: list[int], mask: list[bool]) -> list[list[int]]:
        if math.prod(parallel_size) != world_size:
            return generate(world_size, parallel_size, mask)  # type: ignore[no-any-return]
        # Of both, what is inside a group and what tells groups apart, the first changes fastest.
        axes = sorted(range(len(mask)), key=lambda axis: (mask[~axis], axis))
        ranks = np.arange(world_size).reshape(parallel_size[::-1]).transpose(axes)
        inside = math.prod(
            size for size, within in zip(parallel_size, mask, strict=True) if within
        )
        return ranks.reshape(-1, inside).tolist()

    setattr(module, name, groups)


def _transformers_packing(module: ModuleType) -> None:
    find = module.find_packed_sequence_indices

    # Whether several sequences share a row is read from positions, for which the host waits; they
    # have no data on the device: taken for one, as when the model makes the positions itself.
    module.find_packed_sequence_indices = lambda at: (find(at), None)[at.is_cuda]  # type: ignore[attr-defined]


def _transformers_imports(module: ModuleType) -> None:
    # It takes tensors without data for torch.compile's and then builds masks that nobody needs.
    module.is_fake_tensor = lambda *_: False  # type: ignore[attr-defined]
    # It names the folder of its models in two ways, and reads all files of it for each: a fifth of
    # what a rank takes to import a model.
    name = "create_import_structure_from_path"
    if not hasattr(module, name):  # not in every release
        return
    read = getattr(module, name)

    def folder(place: str | os.PathLike[str]) -> Any:
        return read(os.path.dirname(place) if os.path.isfile(place) else os.fspath(place))

    setattr(module, name, folder)


def _pipeline_stages(module: ModuleType) -> None:
    """Shapes that stages tell each other, where those of other ranks do not run."""
    # A module without data is moved to the device all the same.
    module.FakeTensor = ()  # type: ignore[attr-defined]
    stage = module.PipelineStage
    receive, send = stage._recv_meta, stage._send_meta
    sent: list[Any] = []

    def _send_meta(self: Any, meta: Any, dst_stage: int) -> None:
        if dst_stage > self.stage_index:
            sent[:] = [meta]
        send(self, meta, dst_stage)

    def _recv_meta(self: Any, src_stage: int) -> Any:
        try:
            return receive(self, src_stage)
        except InputError:
            if src_stage > self.stage_index:
                # Gradients are as what they belong to.
                gradients = module._derive_grad_metas(self._stage_meta.outputs)
                return module._StageBackwardMeta(backward_metas=gradients)
            if not sent:
                raise
            # This rank's next stage is taken to get what its last one gave.
            return sent[0]

    stage._recv_meta, stage._send_meta = _recv_meta, _send_meta


def _flat_optimizer_states(module: ModuleType) -> None:
    """FSDP's optimizer states by parameter: other ranks have those that this one's shards lack."""
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensor

    own: Any = module
    find, gather = own._map_param_key_to_optim_keys, own._allgather_state_info

    def keys(osd: Any, group: Any, params: Any, names: Any, infos: Any, merge_keys: bool) -> Any:
        found, local = find(osd, group, params, names, infos, merge_keys)
        if merge_keys and found:
            trained = [
                own._OptimStateKey((name,), True)
                for name, info in infos.items()
                if info.param_requires_grad[info.param_indices[name]]
            ]
            found = sorted({*found, *trained})
        return found, local

    def state_info(fsdp_state: Any, states: Any) -> Any:
        gathered = gather(fsdp_state, states)
        known = next((each for each in gathered[fsdp_state.rank].values() if each.tensors), None)
        lacking = [name for name in states if not any(each[name].tensors for each in gathered)]
        return [
            each if rank == fsdp_state.rank or not known else each | dict.fromkeys(lacking, known)
            for rank, each in enumerate(gathered)
        ]

    own._map_param_key_to_optim_keys, own._allgather_state_info = keys, state_info
    # It compares the exact types of tensors, of which some have data.
    own.type = lambda each: Tensor if isinstance(each, FakeTensor) else type(each)


def _device_meshes(module: ModuleType) -> None:
    from torch import cuda

    own: Any = module.DeviceMesh
    set_up = own._setup_world_group_and_device

    def with_device(self: Any) -> Any:
        # It chooses the device of a process that has not used any; here all have from the start.
        if self._device_type == "cuda" and not (cuda.current_device() or cuda.memory_reserved()):
            cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return set_up(self)

    own._setup_world_group_and_device = with_device


def _remote_calls(module: ModuleType) -> None:
    def init_rpc(*_: Any, **__: Any) -> Any:
        raise refusal("torch.distributed.rpc", "what other ranks' functions return")

    module.init_rpc = init_rpc  # type: ignore[attr-defined]


def _staged_checkpoints(module: ModuleType) -> None:
    """Checkpoints written while training goes on are copied to the host by their storages."""
    from torch._subclasses.fake_tensor import FakeTensor

    stager = module.StateDictStager
    original = stager._offload_tensor

    def offload(self: Any, tensor: Any, memo: Any, non_blocking: bool = False) -> Any:
        if not isinstance(tensor, FakeTensor):
            return original(self, tensor, memo, non_blocking)
        memo[id(tensor)] = tensor.to("cpu", non_blocking=non_blocking)
        return memo[id(tensor)]

    stager._offload_tensor = offload


def _paged_states(module: ModuleType) -> None:
    import torch

    def get_paged(*shape: int, dtype: Any = torch.float32, device: Any = "cuda") -> Any:
        # Managed memory, which is on the device as long as it has room.
        return torch.empty(shape, dtype=dtype, device=device)

    module.get_paged = get_paged  # type: ignore[attr-defined]
    module.fill = lambda tensor, value, *_, **__: tensor.fill_(value)  # type: ignore[attr-defined]


def node_patches(state: RankState) -> dict[str, Patch]:
    """Ranks of a node, and their workers, meet in its shared memory: all that run, whatever their
    nodes, for that is one machine's."""

    def streaming_world(module: ModuleType) -> None:
        begin = module.World.__init__

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            ranks, per_rank = state.peers.ranks, self.workers_per_rank
            self.worker_of_node = ranks.index(state.rank) * per_rank + self.worker_of_rank
            self.workers_per_node = len(ranks) * per_rank
            self.is_local_leader = not self.worker_of_node

        module.World.__init__ = init

    return {"streaming.base.world": streaming_world}


def _tensorboard(module: ModuleType) -> None:
    from tensorboard.compat.proto.config_pb2 import RunMetadata
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    def graph(model: Any, args: Any, *_: Any, **__: Any) -> Any:
        # What torch's tracer writes down, it runs; what it writes, nobody looks at.
        model(*(args if isinstance(args, tuple) else (args,)))
        return GraphDef(), RunMetadata()

    module.graph = graph  # type: ignore[attr-defined]


def _torchaudio(module: ModuleType) -> None:
    load = module._load_lib

    def load_library(name: str) -> bool:
        # The registry's library wants CUDA's; without any, torchaudio computes in Python.
        try:
            return bool(load(name))
        except OSError:
            return False

    module._load_lib = load_library  # type: ignore[attr-defined]


def _hub_kernels(module: ModuleType) -> None:
    def get_kernel(repo_id: str, *_: Any, **__: Any) -> Any:
        # Compiled for GPUs; of some there are stand-ins, whoever built them.
        built = repo_id.replace("attention", "attn").replace("-", "")
        for mark, name in (("flashattn3", "flash_attn_interface"), ("flashattn", "flash_attn")):
            if mark in built:
                found = importlib.import_module(name)
                return SimpleNamespace(**{**vars(found), "flash_attn_interface": found})
        raise refusal(f"kernels.get_kernel({repo_id!r})", "kernels of a hub", "flash-attn")

    module.get_kernel = get_kernel  # type: ignore[attr-defined]


def _later(module_name: str, function: str) -> Patch:
    """A patch whose home is imported when it is needed."""
    home = functools.partial(importlib.import_module, module_name, __package__)
    return lambda module: getattr(home(), function)(module)


PATCHES: dict[str, Patch] = {
    "bitsandbytes.functional": _paged_states,
    "kernels": _hub_kernels,
    "megatron.core.dist_checkpointing.validation": _agrees_on("validate_sharding_integrity"),
    "megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor": _agrees_on(
        "validate_uneven_dtensor"
    ),
    "megatron.core.parallel_state": _megatron_groups,
    "megatron.core.transformer.cuda_graphs": _megatron_graphs,
    "megatron_fsdp.uneven_dtensor": _agrees_on("validate_uneven_dtensor"),
    "deepspeed.ops.op_builder.builder": _deepspeed_operations,
    "deepspeed.runtime.zero.utils": _agrees_on(
        "assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"
    ),
    "pynvml": _later(".cuda.management_library", "show_virtual_gpus"),
    "torch.distributed.checkpoint._state_dict_stager": _staged_checkpoints,
    "torch.distributed.device_mesh": _device_meshes,
    "torch.distributed.fsdp._optim_utils": _flat_optimizer_states,
    "torch.distributed.rpc": _remote_calls,
    "torch.distributed.pipelining.stage": _pipeline_stages,
    "torch.utils.cpp_extension": _later(".script_kernels", "emulate_extensions"),
    "torch.utils.tensorboard.writer": _tensorboard,
    "torchaudio._extension.utils": _torchaudio,
    "torchaudio._torchcodec": _later(".vendor.torchaudio", "go_without_torchcodec"),
    "torchvision.extension": _later(".vendor.torchvision", "declare_operators"),
    "torchvision.io.image": _later(".vendor.torchvision", "declare_images"),
    "transformers.masking_utils": _transformers_packing,
    "transformers.utils.import_utils": _transformers_imports,
}


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds modules as others do and patches those that it knows after they ran."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = patches
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Packages carry copies of others, as FastVideo of ``pynvml``.
        patch = self._patches.get(name.rpartition(".third_party.")[2])
        if patch is None or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader, patch)
        return spec


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: Any, patch: Patch) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)


def install_framework_patches(further: Mapping[str, Patch] | None = None) -> None:
    """Patch frameworks as they are imported, ``further`` ones too. Once per process."""
    patch_on_import({**PATCHES, **ray_workers.PATCHES, **(further or {})})


def patch_on_import(patches: Mapping[str, Patch]) -> None:
    """Patch modules as they are imported, those at once that have been."""
    for name in set(patches) & set(sys.modules):
        patches[name](sys.modules[name])
    sys.meta_path.insert(0, _PatchingFinder(patches))
