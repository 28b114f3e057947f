"""GPT-2 (Hugging Face) under DistributedDataParallel with autocast, or FullyShardedDataParallel,
the first FSDP.

torchrun --nproc-per-node 8 examples/gpt2.py --size small --batch 8
torchrun --nproc-per-node 8 examples/gpt2.py --size xl --batch 4 --parallel fsdp
"""

import argparse
import functools
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

SIZES = {  # layers, hidden, heads
    "tiny": (2, 128, 4),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch", type=int, default=8, help="sequences per GPU")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)

    layers, hidden, heads = SIZES[args.size]
    config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, n_positions=args.seq)
    model = GPT2LMHeadModel(config).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    autocast = args.parallel == "ddp" and args.precision != "fp32"
    if args.parallel == "ddp":
        model = DistributedDataParallel(model, device_ids=[local_rank])
        clip = functools.partial(torch.nn.utils.clip_grad_norm_, [*model.parameters()])
        grad_scaler = torch.amp.GradScaler
    else:
        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=functools.partial(
                transformer_auto_wrap_policy, transformer_layer_cls={GPT2Block}
            ),
            mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32),
            use_orig_params=True,
        )
        clip, grad_scaler = model.clip_grad_norm_, ShardedGradScaler
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = grad_scaler("cuda", enabled=args.precision == "fp16")

    if dist.get_rank() == 0:
        gpus = dist.get_world_size()
        print(f"GPT-2 {args.size}: {parameters / 1e6:.1f} M parameters, {gpus} GPUs")
    for step in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = torch.randint(config.vocab_size, (args.batch, args.seq), device=device)
        with torch.autocast("cuda", dtype, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            print(
                f"step {step}: {1e3 * seconds:.1f} ms, "
                f"{args.batch * args.seq / seconds:,.0f} tokens/s/GPU, "
                f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, "
                f"loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
