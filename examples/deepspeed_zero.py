"""Llama (Hugging Face) under DeepSpeed ZeRO.

torchrun --nproc-per-node 8 examples/deepspeed_zero.py --stage 3 --size 2b
"""

import argparse
import os
import time

import deepspeed
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {  # layers, hidden, MLP, heads, key-value heads, vocabulary
    "tiny": (2, 128, 256, 4, 2, 1024),
    "2b": (8, 4096, 11008, 32, 32, 32000),
    "7b": (32, 4096, 11008, 32, 32, 32000),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], default=3)
    parser.add_argument("--size", choices=SIZES, default="2b")
    parser.add_argument("--batch", type=int, default=1, help="sequences per GPU and micro-batch")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    deepspeed.init_distributed("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
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
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": args.batch,
            "gradient_accumulation_steps": args.accumulate,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": True}},
            "zero_optimization": {
                "stage": args.stage,
                "overlap_comm": True,
                "contiguous_gradients": True,
            },
        },
    )

    for step in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(args.accumulate):
            tokens = torch.randint(vocabulary, (args.batch, args.seq), device=engine.device)
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            tokens_per_s = args.accumulate * args.batch * args.seq / seconds
            print(
                f"step {step}: {1e3 * seconds:.1f} ms, {tokens_per_s:,.0f} tokens/s/GPU, "
                f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, "
                f"loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
