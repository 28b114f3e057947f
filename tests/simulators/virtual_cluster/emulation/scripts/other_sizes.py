"""Asks operations at several sizes and layouts, and torch's own fake mode beside them."""

import os

import torch
from torch.nn import functional

cuda = {"device": "cuda"}
weight, bias = torch.randn(8, 6, **cuda), torch.randn(6, **cuda)
norm = torch.ones(8, **cuda)


def of(x: torch.Tensor) -> list[torch.Tensor]:
    half, whole = x.bfloat16(), x.long()
    heads = x.reshape(1, 2, -1, 4)
    rows = x.reshape(-1, 8)
    return [
        *(x + x, x + 1, x * half, whole / 2, whole + True, x.tanh()),
        *(x + x.transpose(0, 1).contiguous().transpose(0, 1), x * norm, x + x[..., :1], x > 0.5),
        *(x.clamp_min(0), torch.where(x > 0, x, 0.0), functional.gelu(x), functional.silu(half)),
        *(rows @ weight, torch.addmm(bias, rows, weight), torch.bmm(x, x.transpose(1, 2))),
        *(x.softmax(-1), functional.layer_norm(x, (8,), norm, norm), x.sum(1), x.mean((0, 2))),
        *(
            torch.cat((heads, heads), 2),
            torch.cat((heads.mT, heads.mT), 3),
            torch.cat((x[0], x[-1])),
        ),
        *(torch.addmm(rows[:, :6], rows, weight), x[:, :1] + x.new_ones(x.shape[1], 1)),
        *(torch.cat((x, half.float()), 1), torch.stack((x, x)), x.cumsum(1), x.argmax(-1)),
        *(functional.pad(x, (0, 1)), x.clone(), x.to(torch.float64), torch.zeros_like(x)),
        torch.zeros_like(x, memory_format=torch.preserve_format),
        *(functional.embedding(whole, weight), torch.linalg.vector_norm(x, dim=-1)),
        *(*x.topk(1, dim=1), *torch.var_mean(x, 1), x.new_zeros(3, 1), x.repeat_interleave(2, 1)),
        functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        functional.dropout(x, 0.5),
        *(
            torch.arange(len(rows), **cuda),
            torch.arange(7, -len(rows), -2, dtype=half.dtype, **cuda),
        ),
        torch.arange(0, len(rows), 0.5, **cuda),
    ]


def told(made: torch.Tensor) -> tuple[object, ...]:
    return made.shape, made.stride(), made.dtype, made.device


for first, second in ((2, 3), (1, 5), (4, 1), (1, 1), (2, 9), (3, 16)):
    whole = torch.randn(first, second, 8, **cuda)
    for x in (
        whole,
        whole.transpose(0, 1),
        whole[:, ::2],
        torch.randn(second, 8, first, **cuda).mT,
    ):
        ours = [told(made) for made in of(x)]
        with x.fake_mode:
            torchs = [told(made) for made in of(x)]
        for number, (one, other) in enumerate(zip(ours, torchs, strict=True)):
            assert one == other, (number, x.shape, x.stride(), one, other)
# As under torchrun, which says how many.
assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
print("all alike")
