"""BERT masked-language-model pre-training (Hugging Face) under DistributedDataParallel.

torchrun --nproc-per-node 8 examples/bert_ddp.py --size large --batch 8 --seq 512
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

SIZES = {"tiny": (2, 128, 4), "base": (12, 768, 12), "large": (24, 1024, 16)}
MASKED = 0.15


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--batch", type=int, default=8, help="sequences per GPU")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)

    layers, hidden, heads = SIZES[args.size]
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=args.seq,
    )
    model = DistributedDataParallel(BertForMaskedLM(config).to(device), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        tokens = torch.randint(config.vocab_size, (args.batch, args.seq))
        masked = torch.rand(tokens.shape) < MASKED
        labels = tokens.masked_fill(~masked, -100).to(device)
        tokens = tokens.masked_fill(masked, 103).to(device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            print(
                f"step {step}: {1e3 * seconds:.1f} ms, "
                f"{args.batch / seconds:,.1f} sequences/s/GPU, loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
