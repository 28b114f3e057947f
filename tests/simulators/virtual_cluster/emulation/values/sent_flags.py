"""A script whose first rank sends the others what to do, as Megatron-LM's training does."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
flags = torch.zeros(3, dtype=torch.long, device="cuda")
if dist.get_rank() == 0:
    flags = torch.tensor([True, False, False], dtype=torch.long, device="cuda")
dist.broadcast(flags, 0)
train, valid, test = (flags[place].item() for place in range(3))
print(f"rank {dist.get_rank()}: train {train}, valid {valid}, test {test}")
