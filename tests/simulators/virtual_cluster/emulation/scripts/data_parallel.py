"""DistributedDataParallel, then FullyShardedDataParallel 2, of a small model."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FullyShardedOnce
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
WIDTH = 1024


def blocks() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)), torch.nn.ReLU()
    ).cuda()


def train(model: torch.nn.Module, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        push(f"step {step}")
        model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        pop()


class Kept(torch.nn.Linear):
    """Makes a parameter of what FSDP gathered, as bitsandbytes does of its weights."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.weight = torch.nn.Parameter(self.weight.data)
        return super().forward(rows)


kept = FullyShardedOnce(torch.nn.Sequential(FullyShardedOnce(Kept(WIDTH, WIDTH).cuda())))
kept(torch.ones(1, WIDTH, device="cuda"))
assert not kept.module[0].module.weight.untyped_storage().size()
# All ranks exchange parts; what comes is there when it returns.
rows = DTensor.from_local(
    torch.ones(2, 32, device="cuda"),
    init_device_mesh("cuda", (dist.get_world_size(),)),
    [Shard(0)],
)
assert rows.redistribute(placements=[Shard(1)]).to_local().add(1).shape == (32, 2)
# Weights that are not there yet: their padding is set to zero, and nothing is sent.
before = DTensor.from_local(torch.ones(2, 4, device="meta"), rows.device_mesh, [Shard(0)])
before[1].fill_(0)
assert before.full_tensor().is_meta
push("ddp")
train(torch.nn.parallel.DistributedDataParallel(blocks(), bucket_cap_mb=8), 3)
pop()
torch.cuda.synchronize()
push("fsdp")
model = blocks()
for block in model:
    if list(block.parameters()):
        fully_shard(block)
fully_shard(model)
train(model, 2)
pop()
dist.destroy_process_group()
