"""Passes of models of one and of three layers, under autocast over fp32 and in bf16."""

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Heads with their positions, halves turned."""
    angles = torch.arange(x.shape[2], device=x.device, dtype=x.dtype)[:, None]
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


@cache
def angles() -> torch.Tensor:
    """Of all layers' heads, each position's."""
    return torch.ones(256, 32, device="cuda", dtype=torch.complex64)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Heads with their positions, neighbours turned as complex numbers, as Meta's Llama does."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles()).flatten(-2).type_as(x)


Turns = Callable[[torch.Tensor], torch.Tensor] | None


class Block(nn.Module):
    """A layer as nanoGPT writes it, with rotary positions if asked."""

    def __init__(self, width: int, heads: int, rotary: Turns) -> None:
        super().__init__()
        self.rotary = rotary
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = x.shape
        q, k, v = (
            each.view(batch, sequence, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.norm_1(x)).split(width, dim=2)
        )
        if self.rotary:
            q, k = self.rotary(q), self.rotary(k)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, rotary: Turns = None) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(1024, 512), nn.Linear(512, 1024, bias=False)
        self.blocks, self.norm = (
            nn.Sequential(*(Block(512, 8, rotary) for _ in range(layers))),
            nn.LayerNorm(512),
        )

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(input_ids))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gpt2(layers: int) -> nn.Module:
    sizes = {"n_layer": layers, "n_embd": 512, "n_head": 8, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(vocab_size=1024, use_cache=False, **sizes))


def grouped(config: type, model: type, layers: int) -> nn.Module:
    """A model of RMSNorm, rotary positions, two key heads and a gated MLP."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "head_dim": 64, "vocab_size": 1024}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    return model(config(num_hidden_layers=layers, use_cache=False, **sizes, **heads))


KINDS = {
    "gpt": Gpt,
    "rotary": partial(Gpt, rotary=rotated),
    "complex": partial(Gpt, rotary=turned),
    "gpt2": gpt2,
    "llama": partial(grouped, LlamaConfig, LlamaForCausalLM),
    "qwen3": partial(grouped, Qwen3Config, Qwen3ForCausalLM),
}


def requested() -> int:
    """Bytes of tensors, as asked for."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def main() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        autocast, mode = dtype == torch.float32, str(dtype).removeprefix("torch.")
        torch.set_default_dtype(dtype)
        for name, made in KINDS.items():
            for layers in (1, 3):
                with torch.device("cuda"):
                    model = made(layers).train()
                tokens = torch.randint(1024, (4, 256), device="cuda")
                gc.collect()
                before = requested()
                torch.cuda.nvtx.range_push(f"{name} {mode} {layers} forward")
                with torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext():
                    loss = model(input_ids=tokens, labels=tokens)
                loss = loss if isinstance(loss, torch.Tensor) else loss.loss
                torch.cuda.nvtx.range_pop()
                print(f"{name} {mode} {layers} keeps {requested() - before}")
                torch.cuda.nvtx.range_push(f"{name} {mode} {layers} backward")
                loss.backward()
                torch.cuda.nvtx.range_pop()
                del model, loss, tokens


if __name__ == "__main__":
    sys.exit(main())
