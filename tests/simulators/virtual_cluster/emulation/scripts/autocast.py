"""Passes of models of one and of three layers under autocast, their weights in fp32."""

import sys

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


class Block(nn.Module):
    """A layer as nanoGPT writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
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
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(1024, 512), nn.Linear(512, 1024, bias=False)
        self.blocks, self.norm = (
            nn.Sequential(*(Block(512, 8) for _ in range(layers))),
            nn.LayerNorm(512),
        )

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(input_ids))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gpt2(layers: int) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(n_layer=layers, n_embd=512, n_head=8, vocab_size=1024, n_positions=256)
    )


def llama(layers: int) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=512,
            intermediate_size=1536,
            num_attention_heads=8,
            num_key_value_heads=2,
            vocab_size=1024,
            use_cache=False,
        )
    )


def main() -> None:
    kinds = {"gpt": Gpt, "gpt2": gpt2, "llama": llama}
    for name, made in kinds.items():
        for layers in (1, 3):
            with torch.device("cuda"):
                model = made(layers).train()
            tokens = torch.randint(1024, (4, 256), device="cuda")
            before = torch.cuda.memory_allocated()
            torch.cuda.nvtx.range_push(f"{name} {layers} forward")
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens)
            loss = loss if isinstance(loss, torch.Tensor) else loss.loss
            torch.cuda.nvtx.range_pop()
            print(f"{name} {layers} keeps {torch.cuda.memory_allocated() - before}")
            torch.cuda.nvtx.range_push(f"{name} {layers} backward")
            loss.backward()
            torch.cuda.nvtx.range_pop()
            del model, loss, tokens


if __name__ == "__main__":
    sys.exit(main())
