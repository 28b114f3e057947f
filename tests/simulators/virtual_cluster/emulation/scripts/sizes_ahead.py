"""Two pipeline stages that send sizes ahead of tensors, positions before activations."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
layer = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(layer.parameters())


def give(tensor: torch.Tensor, to: int) -> None:
    dist.send(torch.tensor(tensor.shape, device="cuda"), to)
    dist.send(tensor, to)


def take(dtype: torch.dtype, source: int) -> torch.Tensor:
    sizes = torch.empty(2, dtype=torch.long, device="cuda")
    dist.recv(sizes, source)
    got = torch.empty(sizes.tolist(), dtype=dtype, device="cuda")
    dist.recv(got, source)
    return got


for _ in range(2):
    if dist.get_rank() == 0:
        output = layer(torch.randn(32, 64, device="cuda"))
        give(output.detach(), 1)
        give(torch.arange(96, device="cuda").reshape(3, 32), 1)
        output.backward(take(torch.float32, 1))
    else:
        given = take(torch.float32, 0)
        take(torch.long, 0)
        loss = layer(given.requires_grad_()).sum()
        loss.backward()
        give(given.grad, 0)
    optimizer.step()
