"""What torch offers to training scripts and few of them use."""

import os

import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel as Ddp

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.backends.cuda.preferred_linalg_library("cusolver")
dist.init_process_group("nccl")
x = torch.randn(32, 64, device=device)


class Halved(torch.Tensor):
    def __new__(cls, whole: torch.Tensor) -> "Halved":
        made = torch.Tensor._make_wrapper_subclass(cls, whole.shape, device=whole.device)
        made.part = whole.half()
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        part = args[0].part
        return part.__torch_dispatch__(func, types, (part, *args[1:]), kwargs)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).to(device)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


# A hook after a hook: one future after another.
replica = Ddp(network(), device_ids=[device.index])
replica.register_comm_hook(None, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
train(replica, torch.optim.SGD(replica.parameters(), 0.1))

# Of parameters that this rank's shards have no part of, others have the states.
sharded = Fsdp(network(), use_orig_params=True, device_id=device)
sharded[2].weight.requires_grad_(False)
adam = torch.optim.AdamW(sharded.parameters())
train(sharded, adam)
whole = (FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=True))
with Fsdp.state_dict_type(sharded, StateDictType.FULL_STATE_DICT, *whole):
    states = Fsdp.optim_state_dict(sharded, adam)
print({name: tuple(state["exp_avg"].shape) for name, state in states["state"].items()})
adam.load_state_dict(Fsdp.optim_state_dict_to_load(sharded, adam, states))

# Replicas whose sums go by the host's network, each with the states of some parameters.
hosts = dist.new_group(backend="gloo")
replica = Ddp(network(), device_ids=[device.index], process_group=hosts)
shards = ZeroRedundancyOptimizer(replica.parameters(), torch.optim.Adam, process_group=hosts)
train(replica, shards)
shards.consolidate_state_dict(to=0)
if dist.get_rank() == 0:
    states = shards.state_dict()["state"]
    print("consolidated", [tuple(state["exp_avg"].shape) for state in states.values()])

dist.broadcast_object_list([x], src=1)

# Entries that are taken out of what each rank gave.
gathered = [None] * dist.get_world_size()
dist.gather_object({"seconds": 1.0}, gathered)
assert sum(each.pop("seconds") for each in gathered) == len(gathered)

# Classes of a byte, as images of labels have, for targets.
classes = torch.zeros(32, dtype=torch.uint8, device=device)
nn.functional.cross_entropy(network()(x), classes).backward()

# Memory that all ranks of a group reach.
near = dist.new_group()
shared = symmetric_memory.empty(4, 8, device=device)
memory = symmetric_memory.rendezvous(shared, near.group_name)
torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", near.group_name)
summed = torch.ops.symm_mem.one_shot_all_reduce(shared, "avg", group_name=near.group_name)
rows = torch.empty(memory.world_size, 8, device=device)
torch.ops.symm_mem.multimem_all_gather_out(shared[0], near.group_name, rows)
memory.put_signal(1)
memory.barrier()
peer = memory.get_buffer(1, (2, 4), torch.float32, storage_offset=8)
print("shared", tuple(summed.shape), tuple(memory.get_remote_tensor(1, (8,), torch.half).shape))
assert peer.data_ptr() == shared[1].data_ptr()
_, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(
    shared, [shared.t()], gather_dim=0, group_name=near.group_name
)
part = torch.ops.symm_mem.fused_matmul_reduce_scatter(product, shared, "sum", 0, near.group_name)
print("fused", tuple(product.shape), tuple(part.shape))

# What is selected by flags of which only the script knows how many are set.
flags = torch.rand(32, 64, device=device) < 0.75
print(tuple(x[flags].view(32, 48).shape), tuple(x[flags[:, 0]].view(5, -1, 64).shape)[::2])

# A tensor of tensors that asks its part by name.
halves = Halved(x)
print(tuple(halves[3:7].shape), "of a half")

weight = torch.randn(64, 64, device=device)
torch.cuda.profiler.start()
with torch.autograd.profiler.emit_nvtx(), forward_ad.dual_level():
    dual = forward_ad.make_dual(x, torch.ones_like(x))
    print(tuple(forward_ad.unpack_dual(dual @ weight).tangent.shape))

queries = torch.randn(2, 4, 8, 16, device=device, dtype=torch.bfloat16)
keys = torch.randn(2, 4, 32, 16, device=device, dtype=torch.bfloat16)
print(tuple(scaled_dot_product_attention(queries, keys, keys, causal_lower_right(8, 32)).shape))

# What compiling a module gives knows the module, and names its parameters after it.
torch._functorch.config.activation_memory_budget = 0.5
compiled = torch.compile(network())
print(next(iter(compiled.state_dict())), type(compiled._orig_mod).__name__)
train(compiled, torch.optim.SGD(compiled.parameters(), 0.1))
print(len(torch._dynamo.utils.get_compilation_metrics()), "compiled")
print(tuple(torch.cond(x.sum() > 0, lambda rows: rows[:3], lambda rows: rows[:2], (x,)).shape))
scripted = torch.jit.script(network())
torch.jit.save(scripted, f"scripted{dist.get_rank()}.pt")

# Sequences of unlike lengths in one tensor.
offsets = torch.tensor([0, 5, 14, 32], device=device)
jagged = torch.nested.nested_tensor_from_jagged(x, offsets)
into = nn.Linear(64, 192, device=device)
for dtype in (torch.bfloat16, torch.float32):
    with torch.autocast("cuda", dtype, enabled=dtype is torch.bfloat16):
        parts = [each.unflatten(-1, [4, 16]) for each in into(jagged).chunk(3, -1)]
        attended = scaled_dot_product_attention(*[each.transpose(1, 2) for each in parts])
    attended.values().float().sum().backward()
print(
    tuple(attended.values().shape),
    [each.shape[0] for each in jagged.unbind()],
    into.weight.grad.shape,
)

torch.cuda.set_per_process_memory_fraction(0.5)
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    torch.empty(16, device=device)
print(round(torch.cuda.get_per_process_memory_fraction(), 3))

activities = torch.profiler.supported_activities()
with torch.profiler.profile(activities=activities, with_stack=True) as profiled:
    network()(x).sum().backward()
print(
    len(activities), "activities,", any("aten::addmm" in each.name for each in profiled.events())
)

# All groups again, of the same names.
store = dist.TCPStore("127.0.0.1", 29400, is_master=True)
dist.destroy_process_group()
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4096, device=device, dtype=torch.float64))
print("store at", store.port)
torch.distributed.rpc.init_rpc("worker", rank=dist.get_rank(), world_size=dist.get_world_size())
