"""A model that torch.export cuts into stages on the host, one of which goes to the device."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

dist.init_process_group("nccl")
rank, device = dist.get_rank(), torch.device("cuda", 0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(dist.get_world_size())))
traced = pipeline(model, (torch.randn(4, 64),), split_spec={"1": SplitPoint.BEGINNING})
stage = traced.build_stage(rank, device, dist.group.WORLD)
schedule = ScheduleGPipe(stage, 8, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(stage.submod.parameters())
for _ in range(2):
    optimizer.zero_grad()
    schedule.step(torch.randn(32, 64, device=device))
    optimizer.step()
