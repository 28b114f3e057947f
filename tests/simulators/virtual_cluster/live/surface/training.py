"""What is trained with: FSDP, DDP, pipelines, and their checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from ranks import CASES, RANK, SIZE, case, on_devices, whole
from record import DEVICE, REAL
from sharding import LINE, PLANE, inputs, shapes
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor


def model(*sizes):
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*layers).to(DEVICE)


def train(module, optimizer=None, steps=2, width=8):
    for _ in range(steps):
        module(inputs(4, width)).sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def fsdp2_cases():
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    def built(mesh=None, wide=True, each=True, **settings):
        net = model(8, 16, 8)
        if each:
            for layer in net:
                fully_shard(layer, mesh=mesh or LINE, **settings)
        return fully_shard(net, mesh=mesh or LINE, **settings)

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    settings = {
        "plain": {},
        "whole": {"each": False},
        "no_reshard": {"reshard_after_forward": False},
        "reshard_2": {"reshard_after_forward": 2},
        "mixed": {"mp_policy": half},
        "hybrid": {"mesh": PLANE},
        **({} if REAL else {"offload": {"offload_policy": CPUOffloadPolicy()}}),
    }
    for name, given in settings.items():

        def sharded(given=given):
            net = built(**given)
            train(net, torch.optim.AdamW(net.parameters()))
            return shapes(net)

        CASES[f"fsdp2_{name}"] = sharded

    @case
    def fsdp2_switches():
        net = built()
        net.set_requires_gradient_sync(False)
        train(net, steps=1)
        net.set_requires_gradient_sync(True)
        net.set_is_last_backward(True)
        train(net, steps=1)
        net.unshard()
        net.reshard()
        net[0].set_modules_to_forward_prefetch([net[1]])
        net[1].set_modules_to_backward_prefetch([net[0]])
        net.set_reshard_after_backward(False)
        net.set_gradient_divide_factor(2.0)
        train(net, steps=1)
        return shapes(net)

    @case
    def fsdp2_clip():
        net = built()
        train(net, steps=1)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        return list(norm.full_tensor().shape)

    @case
    def fsdp2_state():
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_state_dict,
            set_model_state_dict,
            set_state_dict,
        )

        net = built()
        optimizer = torch.optim.AdamW(net.parameters())
        train(net, optimizer, steps=1)
        full = StateDictOptions(full_state_dict=True, cpu_offload=True)
        states = get_model_state_dict(net, options=full)
        own, of_optimizer = get_state_dict(net, optimizer)
        set_state_dict(net, optimizer, model_state_dict=own, optim_state_dict=of_optimizer)
        broadcast = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(net, states if RANK == 0 else {}, options=broadcast)
        return {k: list(v.shape) for k, v in states.items()}, sorted(own)


fsdp2_cases()


def fsdp1_cases():
    from torch.distributed.fsdp import (
        CPUOffload,
        FullStateDictConfig,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
        StateDictType,
    )

    def built(**given):
        net = model(8, 16, 8)
        place = torch.device("cpu") if REAL else torch.cuda.current_device()
        net = nn.Sequential(
            *(
                FullyShardedDataParallel(layer, device_id=place, use_orig_params=True, **given)
                for layer in net
            )
        )
        return FullyShardedDataParallel(net, device_id=place, use_orig_params=True, **given)

    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    settings = {
        each.lower(): {"sharding_strategy": getattr(ShardingStrategy, each)}
        for each in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
    } | {
        "mixed": {"mixed_precision": half},
        **(
            {}
            if REAL
            else {
                "offload": {"cpu_offload": CPUOffload(True)},
                "states": {"sync_module_states": True},
            }
        ),
        "hybrid": {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": PLANE},
    }
    for name, given in settings.items():

        def sharded(given=given):
            net = built(**given)
            train(net, torch.optim.AdamW(net.parameters()))
            net.clip_grad_norm_(1.0)
            return len(list(net.parameters()))

        CASES[f"fsdp1_{name}"] = sharded

    @on_devices
    def fsdp1_state():
        net = built()
        optimizer = torch.optim.AdamW(net.parameters())
        train(net, optimizer)
        with FullyShardedDataParallel.state_dict_type(
            net,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
        ):
            states = net.state_dict()
            FullyShardedDataParallel.optim_state_dict(net, optimizer)
        with FullyShardedDataParallel.summon_full_params(net):
            sizes = [list(p.shape) for p in net.parameters()]
        with net.no_sync():
            train(net, steps=1)
        with FullyShardedDataParallel.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
            net.load_state_dict(net.state_dict())
        return {k: list(v.shape) for k, v in states.items()}, sizes


fsdp1_cases()


def ddp_cases():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    def built(**given):
        return DistributedDataParallel(model(8, 16, 8), **given)

    settings = {
        "plain": {},
        "small_buckets": {"bucket_cap_mb": 0.0001},
        "static": {"static_graph": True},
        "view": {"gradient_as_bucket_view": True},
        "unused": {"find_unused_parameters": True},
        "no_buffers": {"broadcast_buffers": False},
    }
    for name, given in settings.items():

        def parallel(given=given):
            net = built(**given)
            train(net, torch.optim.SGD(net.parameters(), 0.1), steps=3)
            return shapes(net)

        CASES[f"ddp_{name}"] = parallel

    hooks = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "wrapped": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    }
    for name, hook in hooks.items():

        def hooked(hook=hook):
            net = built()
            # A torch built without CUDA refuses bf16's on the host, by its name.
            called = (lambda state, bucket: hook(state, bucket)) if REAL else hook
            net.register_comm_hook(dist.group.WORLD, called)
            train(net, torch.optim.SGD(net.parameters(), 0.1), steps=3)
            return shapes(net)

        CASES[f"ddp_hook_{name}"] = hooked

    # The host's modes do not see what is launched when the first part has come.
    @on_devices
    def ddp_hook_powersgd():
        net = built()
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(net, torch.optim.SGD(net.parameters(), 0.1), steps=4)
        return shapes(net)

    @case
    def ddp_hook_post_local():
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
            PostLocalSGDState,
            post_localSGD_hook,
        )
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        net = built()
        group, _ = dist.new_subgroups(2)
        net.register_comm_hook(PostLocalSGDState(None, group, 1), post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), PeriodicModelAverager(2, warmup_steps=1)
        )
        train(net, optimizer, steps=4)
        return shapes(net)

    @case
    def ddp_no_sync():
        net = built()
        with net.no_sync():
            train(net, steps=1)
        train(net, steps=1)
        return shapes(net)

    @case
    def ddp_join():
        net = built()
        with net.join():
            train(net, torch.optim.SGD(net.parameters(), 0.1), steps=2 + RANK % 2)
        return shapes(net)

    @case
    def ddp_join_throws():
        from torch.distributed.algorithms.join import Join

        net = built()
        with contextlib.suppress(RuntimeError), Join([net], throw_on_early_termination=True):
            train(net, torch.optim.SGD(net.parameters(), 0.1), steps=2)
        return shapes(net)

    @case
    def ddp_zero():
        from torch.distributed.optim import ZeroRedundancyOptimizer

        net = built()
        train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1), steps=3)
        return shapes(net)

    @on_devices
    def ddp_sync_batch_norm():
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(DEVICE)
        net = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net))
        train(net)
        return list(net.module[1].running_mean.shape)


ddp_cases()


def pipeline_cases():
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleDualPipeV,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleInterleavedZeroBubble,
        ScheduleLoopedBFS,
        ScheduleZBVZeroBubble,
        SplitPoint,
        pipeline,
    )

    def stages(count):
        at = [RANK] if count == 1 else [RANK, RANK + SIZE]
        return [
            PipelineStage(nn.Linear(8, 8).to(DEVICE), number, count * SIZE, torch.device(DEVICE))
            for number in at
        ]

    def stepped(schedule):
        given = [inputs(8, 8)] if RANK == 0 else []
        last = RANK == SIZE - 1 or isinstance(schedule, (ScheduleZBVZeroBubble, ScheduleDualPipeV))
        losses = [] if last else None
        target = inputs(8, 8) if last else None
        for _ in range(2):
            schedule.step(*given, target=target, losses=losses)
        return None if losses is None else len(losses)

    for kind in (Schedule1F1B, ScheduleGPipe):

        def single(kind=kind):
            return stepped(kind(stages(1)[0], 4, nn.MSELoss()))

        CASES[f"pipeline_{kind.__name__}"] = single
    for kind in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleLoopedBFS):

        def several(kind=kind):
            return stepped(kind(stages(2), 4, nn.MSELoss()))

        CASES[f"pipeline_{kind.__name__}"] = several
    for kind in (ScheduleZBVZeroBubble, ScheduleDualPipeV):

        def v_shaped(kind=kind):
            made = [
                PipelineStage(nn.Linear(8, 8).to(DEVICE), number, 2 * SIZE, torch.device(DEVICE))
                for number in (RANK, 2 * SIZE - 1 - RANK)
            ]
            given = [inputs(8, 8)] if RANK == 0 else []
            target, losses = (inputs(8, 8), []) if RANK == 0 else (None, None)
            schedule = kind(made, 8, nn.MSELoss())
            schedule.step(*given, target=target, losses=losses)
            return None if losses is None else len(losses)

        CASES[f"pipeline_{kind.__name__}"] = v_shaped

    @case
    def pipeline_traced():
        net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(SIZE)))
        points = {str(at): SplitPoint.BEGINNING for at in range(1, SIZE)}
        stage = pipeline(net, (torch.ones(2, 8),), split_spec=points).build_stage(
            RANK, torch.device(DEVICE)
        )
        return stepped(ScheduleGPipe(stage, 4, nn.MSELoss()))


pipeline_cases()


def shared_folder():
    told = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(told, 0)
    return told[0]


@case
def checkpoint_dtensor():
    import torch.distributed.checkpoint as checkpoint

    made = distribute_tensor(whole(8, 4), LINE, [Shard(0)])
    where = shared_folder()
    checkpoint.save({"w": made, "step": 3, "plain": whole(2)}, checkpoint_id=where)
    read = {
        "w": dtensor.zeros(8, 4, device_mesh=LINE, placements=[Shard(1)], dtype=torch.int64),
        "step": 0,
        "plain": whole(2) * 0,
    }
    checkpoint.load(read, checkpoint_id=where)
    return read["step"], list(read["w"].to_local().shape)


@case
def checkpoint_async():
    import torch.distributed.checkpoint as checkpoint

    made = distribute_tensor(whole(8, 4), LINE, [Shard(0)])
    checkpoint.async_save({"w": made}, checkpoint_id=shared_folder()).result()
    return True


@case
def checkpoint_stateful():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(model(8, 8), mesh=LINE)
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer)
    where = shared_folder()

    class App:
        def state_dict(self):
            of_model, of_optimizer = get_state_dict(net, optimizer)
            return {"model": of_model, "optim": of_optimizer}

        def load_state_dict(self, state):
            set_state_dict(
                net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
            )

    checkpoint.save({"app": App()}, checkpoint_id=where)
    checkpoint.load({"app": App()}, checkpoint_id=where)
    return shapes(net)


@case
def split_group():
    if REAL:
        mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    else:
        mine = dist.split_group(dist.group.WORLD, [[0, 3], [1, 2]])
    value = whole(2) + RANK
    dist.all_reduce(value, group=mine)
    return value
