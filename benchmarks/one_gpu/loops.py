"""What the cases share: a loop that times itself, synthetic tokens, a small GPT."""

import itertools
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

WARM = 4
GPU = torch.device("cuda", 0)


class Ticks:
    """When steps ended; a training loop calls it after every step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._events = []
        self._started = (0.0, 0.0)

    def __call__(self) -> None:
        if len(self._events) == 0:
            torch.cuda.synchronize()
            self._started = (time.perf_counter(), time.process_time())
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def report(self) -> dict:
        issued = time.perf_counter(), time.process_time()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        steps = len(self._events) - 1
        pairs = itertools.pairwise(self._events)
        return {
            "steps": steps,
            "step_s": statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairs),
            "wall_s": (ended - self._started[0]) / steps,
            "issued_s": (issued[0] - self._started[0]) / steps,
            "cpu_s": (issued[1] - self._started[1]) / steps,
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }


def loop(step, options):
    """Warm-up and timed steps of a plain loop; then one more under the profiler, if asked."""
    for _ in range(WARM):
        step()
    ticks = Ticks(options.steps)
    ticks()
    for _ in range(options.steps):
        step()
        ticks()
    result = ticks.report()
    if options.profile:
        from torch.profiler import profile

        with profile(record_shapes=True) as recorded:
            step()
            torch.cuda.synchronize()
        recorded.export_chrome_trace(options.profile)
    return result


def supervised(model, inputs, options, *, optimizer=None, clip=1.0, amp=torch.bfloat16):
    """The usual loop: forward under autocast, backward, clipping, AdamW."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
            loss = model(**inputs())
            loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return loop(step, options)


def tokens(vocabulary, batch, sequence, **more):
    def inputs():
        ids = torch.randint(vocabulary, (batch, sequence), device=GPU)
        return {"input_ids": ids, "labels": ids, **more}

    return inputs


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.heads = heads

    def forward(self, x):
        batch, sequence, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (
            each.view(batch, sequence, self.heads, -1).transpose(1, 2) for each in (q, k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A GPT of nanoGPT's kind: learned positions, pre-norm, tied head."""

    def __init__(self, layers=12, width=768, heads=12, vocabulary=50304, sequence=1024):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids, labels):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def start_group():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=GPU)
