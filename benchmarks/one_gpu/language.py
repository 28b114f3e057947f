"""Language models: plain loops, transformers and its Trainer, PEFT, DDP, FSDP2."""

import torch
import torch.nn.functional as F  # noqa: N812
from loops import GPT, GPU, WARM, Ticks, loop, start_group, supervised, tokens
from torch import nn


def gpt(options, batch=16, sequence=1024):
    with GPU:
        model = GPT()
    return supervised(model, tokens(50304, batch, sequence), options)


def gpt_small(options):
    return gpt(options, batch=1, sequence=64)


def gpt_ddp(options):
    start_group()
    with GPU:
        model = nn.parallel.DistributedDataParallel(GPT(), device_ids=[0])
    return supervised(model, tokens(50304, 16, 1024), options)


def llama_model(layers=16, dtype=torch.bfloat16):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=4096,
        use_cache=False,
    )
    torch.set_default_dtype(dtype)
    with GPU:
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.train()


def llama(options, batch=4, sequence=2048):
    """Llama of 1.1 B parameters wholly in bfloat16, plain AdamW."""
    model = llama_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return supervised(
        model, tokens(32000, batch, sequence), options, optimizer=optimizer, amp=None
    )


def llama_small(options):
    return llama(options, batch=1, sequence=64)


def llama_lora(options):
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=targets)
    model = get_peft_model(llama_model(), settings)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    return supervised(model, tokens(32000, 4, 2048), options, optimizer=optimizer, clip=0)


def llama_fsdp2(options):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    start_group()
    model = llama_model(dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return supervised(model, tokens(32000, 4, 2048), options, amp=None)


def llama_packed(options):
    """Packed SFT: documents of unequal lengths in a row, prompts masked, the rest picked."""
    model = llama_model(layers=12)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def sequence():
        lengths = torch.randint(100, 580, (7,), generator=generator).tolist()
        lengths.append(4096 - sum(lengths))
        places = torch.cat([torch.arange(each) for each in lengths])
        documents = torch.repeat_interleave(torch.arange(8), torch.tensor(lengths))
        ids = torch.randint(32000, (4096,), generator=generator)
        labels = ids.clone()
        labels[places < 64] = -100
        return ids, labels, places, documents

    def step():
        batch = [torch.stack(each) for each in zip(sequence(), sequence(), strict=True)]
        ids, labels, places, documents = (
            each.pin_memory().to(GPU, non_blocking=True) for each in batch
        )
        same = documents[:, None, :, None] == documents[:, None, None, :]
        causal = torch.ones(4096, 4096, dtype=torch.bool, device=GPU).tril()
        states = model.model(
            input_ids=ids, position_ids=places, attention_mask=same & causal
        ).last_hidden_state
        kept = labels[:, 1:] != -100
        logits = model.lm_head(states[:, :-1][kept])
        loss = F.cross_entropy(logits.float(), labels[:, 1:][kept])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return loop(step, options)


def qwen_trainer(options):
    """The Trainer of transformers: bf16, a data loader of the host, gradients clipped."""
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    with GPU:
        model = Qwen2ForCausalLM(config)
    steps = WARM + options.steps
    rows = torch.randint(151936, (steps * 4, 1024))
    data = [{"input_ids": row, "labels": row} for row in rows]
    ticks = Ticks(options.steps)

    class Timer(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step >= WARM:
                ticks()

    settings = TrainingArguments(
        output_dir="/tmp/one_gpu_trainer",
        per_device_train_batch_size=4,
        max_steps=steps,
        bf16=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=settings, train_dataset=data, callbacks=[Timer()]).train()
    return ticks.report()
