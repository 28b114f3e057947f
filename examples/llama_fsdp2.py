"""Llama (Hugging Face) under FSDP2, with optional activation checkpointing.

torchrun --nproc-per-node 8 examples/llama_fsdp2.py --size 8b --seq 8192 --checkpoint
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {  # layers, hidden, MLP, heads, key-value heads, vocabulary
    "tiny": (2, 128, 256, 4, 2, 1024),
    "1b": (16, 2048, 8192, 32, 8, 128256),
    "8b": (32, 4096, 14336, 32, 8, 128256),
    "70b": (80, 8192, 28672, 64, 8, 128256),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--batch", type=int, default=1, help="sequences per GPU")
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)

    layers, hidden, mlp, heads, kv_heads, vocabulary = SIZES[args.size]
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=args.seq,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for index, layer in enumerate(model.model.layers):
        if args.checkpoint:
            layer = checkpoint_wrapper(layer)
            model.model.layers[index] = layer
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    if rank == 0:
        sharded = torch.cuda.memory_allocated() / 2**30
        print(
            f"Llama {args.size}: {parameters / 1e9:.2f} B parameters, {world_size} GPUs, "
            f"{sharded:.2f} GiB a GPU after sharding"
        )
    for step in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = torch.randint(vocabulary, (args.batch, args.seq), device=device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if rank == 0:
            print(
                f"step {step}: {1e3 * seconds:.1f} ms, "
                f"{args.batch * args.seq / seconds:,.0f} tokens/s/GPU, "
                f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, "
                f"loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
