"""Two stages a rank of torch's pipelining, which are told no shapes: they tell each other."""

import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
layers = [torch.nn.Linear(64, 64, device=device) for _ in range(2)]
stages = [
    PipelineStage(layer, rank + number * world, 2 * world, device)
    for number, layer in enumerate(layers)
]
schedule = ScheduleInterleaved1F1B(stages, 8, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
for _ in range(2):
    optimizer.zero_grad()
    batch = torch.randn(32, 64, device=device)
    schedule.step(*([batch] if rank == 0 else []))
    optimizer.step()
