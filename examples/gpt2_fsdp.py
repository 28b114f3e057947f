"""GPT-2 (Hugging Face) under FullyShardedDataParallel, the first FSDP.

torchrun --nproc-per-node 8 examples/gpt2_fsdp.py --size xl --batch 4
"""

import argparse
import functools
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

SIZES = {
    "tiny": (2, 128, 4),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}
STRATEGIES = {"full": ShardingStrategy.FULL_SHARD, "grad_op": ShardingStrategy.SHARD_GRAD_OP}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="xl")
    parser.add_argument("--batch", type=int, default=4, help="sequences per GPU")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--strategy", choices=STRATEGIES, default="full")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)

    layers, hidden, heads = SIZES[args.size]
    config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, n_positions=args.seq)
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FullyShardedDataParallel(
        GPT2LMHeadModel(config),
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={GPT2Block}
        ),
        sharding_strategy=STRATEGIES[args.strategy],
        mixed_precision=bf16 if args.precision == "bf16" else None,
        device_id=device,
        use_orig_params=True,
        limit_all_gathers=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for step in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = torch.randint(config.vocab_size, (args.batch, args.seq), device=device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            print(
                f"step {step}: {1e3 * seconds:.1f} ms, "
                f"{args.batch * args.seq / seconds:,.0f} tokens/s/GPU, loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
