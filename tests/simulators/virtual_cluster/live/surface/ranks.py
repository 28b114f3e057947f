"""What every table of calls has: the rank it runs as, and numbers to give away."""

from __future__ import annotations

import torch
import torch.distributed as dist
from record import DEVICE, REAL, begin

begin(4)
RANK, SIZE, WORLD = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
CASES = {}


def case(call):
    """A call of the table, by its name."""
    CASES[call.__name__] = call
    return call


def on_devices(call):
    """One that the host has no form of: it must run."""
    return call if REAL else case(call)


def own(*shape, dtype=torch.int64, base=10):
    """Numbers from 10 times the rank."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=dtype, device=DEVICE) + base * RANK).view(shape)


def empty(*shape, dtype=torch.int64):
    return torch.full(shape, -1, dtype=dtype, device=DEVICE)


def many(count, *shape):
    return [empty(*shape) for _ in range(count)]


def whole(*shape, dtype=torch.int64):
    """Numbers in turn, the same on all ranks."""
    return torch.arange(torch.Size(shape).numel(), dtype=dtype, device=DEVICE).view(shape)
