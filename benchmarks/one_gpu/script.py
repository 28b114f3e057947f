"""Small training loops that time themselves, on a real GPU or a virtual one.

    python script.py CASE [--profile trace.json] [--steps 12]

Ordinary training code: nothing here knows of this project. Each case makes a model of random
weights and synthetic data on the device and says, as one line of JSON: seconds of a step by CUDA
events (median) and by the wall clock (mean), CPU seconds of the process a step, and the most
bytes that torch's allocator had allocated and reserved. ``small`` cases have so little data that
the host bounds their steps.
"""

import argparse
import copy
import itertools
import json
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


def gpt(options, batch=16, sequence=1024):
    with GPU:
        model = GPT()
    return supervised(model, tokens(50304, batch, sequence), options)


def gpt_small(options):
    return gpt(options, batch=1, sequence=64)


def gpt_compiled(options):
    with GPU:
        model = torch.compile(GPT())
    return supervised(model, tokens(50304, 16, 1024), options)


def gpt_ddp(options):
    start_group()
    with GPU:
        model = nn.parallel.DistributedDataParallel(GPT(), device_ids=[0])
    return supervised(model, tokens(50304, 16, 1024), options)


def gpt_fp16_scaled(options):
    """Float16 with a gradient scaler, accumulated over two micro-batches; the loss is read."""
    with GPU:
        model = GPT(layers=24, width=1024, heads=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    inputs = tokens(50304, 4, 1024)

    def step():
        total = 0.0
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(**inputs()) / 2
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total

    return loop(step, options)


def start_group():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=GPU)


def llama_model(layers=16, dtype=torch.bfloat16, **more):
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
        **more,
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


def llama_checkpointed(options):
    model = llama_model()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return supervised(model, tokens(32000, 8, 2048), options, amp=None)


def llama_eager_attention(options):
    model = llama_model(layers=8, attn_implementation="eager")
    return supervised(model, tokens(32000, 4, 2048), options, amp=None)


def llama_compiled(options):
    model = torch.compile(llama_model(layers=8))
    return supervised(model, tokens(32000, 4, 2048), options, amp=None)


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


def qwen_experts(options):
    """Qwen3-MoE of transformers: 32 experts, 4 of them a token."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        hidden_size=1024,
        intermediate_size=2048,
        moe_intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=32,
        num_experts_per_tok=4,
        vocab_size=32000,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with GPU:
        model = Qwen3MoeForCausalLM(config)
    return supervised(model.train(), tokens(32000, 4, 2048), options, amp=None)


def bert(options, batch=32, sequence=512):
    """BERT base with padding, float32 products in TF32."""
    from transformers import BertConfig, BertForMaskedLM

    torch.backends.cuda.matmul.allow_tf32 = True
    with GPU:
        model = BertForMaskedLM(BertConfig()).train()
    lengths = torch.randint(sequence // 4, sequence, (batch, 1), device=GPU)
    mask = (torch.arange(sequence, device=GPU) < lengths).long()
    inputs = tokens(30522, batch, sequence, attention_mask=mask)
    return supervised(model, inputs, options, amp=None)


def bert_small(options):
    return bert(options, batch=1, sequence=64)


def vit(options):
    """ViT-L/16 of transformers under bf16 autocast."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        num_labels=1000,
    )
    with GPU:
        model = ViTForImageClassification(config).train()

    def inputs():
        images = torch.randn(64, 3, 224, 224, device=GPU)
        return {"pixel_values": images, "labels": torch.randint(1000, (64,), device=GPU)}

    return supervised(model, inputs, options)


def timm_images(name, options, *, batch, channels_last=True, amp=torch.bfloat16):
    import timm

    layout = torch.channels_last if channels_last else torch.contiguous_format
    with GPU:
        model = timm.create_model(name).train()
    model = model.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step():
        images = torch.randn(batch, 3, 224, 224, device=GPU).to(memory_format=layout)
        labels = torch.randint(1000, (batch,), device=GPU)
        with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return loop(step, options)


def resnet(options):
    return timm_images("resnet50", options, batch=256)


def resnet_float(options):
    """ResNet-50 in float32 (TF32 convolutions, torch's default) and contiguous."""
    return timm_images("resnet50", options, batch=64, channels_last=False, amp=None)


def convnext(options):
    return timm_images("convnext_tiny", options, batch=128)


def lightning(options):
    """A transformer encoder in Lightning's Trainer, which gives the optimizer a closure."""
    import lightning as pl

    ticks = Ticks(options.steps)

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                768, 12, 3072, batch_first=True, activation="gelu", norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = nn.Linear(768, 1000)

        def training_step(self, batch, _):
            states, labels = batch
            return F.cross_entropy(self.head(self.encoder(states).mean(1)), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    class Timer(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step >= WARM:
                ticks()

    steps = WARM + options.steps
    states, labels = torch.randn(steps * 32, 256, 768), torch.randint(1000, (steps * 32,))
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(states, labels), batch_size=32, pin_memory=True
    )
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=steps,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Timer()],
    )
    trainer.fit(Classifier(), data)
    return ticks.report()


def graph_attention(options):
    """GAT of PyTorch Geometric on a graph of 100,000 nodes and 2 million edges."""
    from torch_geometric.nn import GATConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = GATConv(128, 64, heads=8)
            self.second = GATConv(512, 64, heads=8)
            self.last = GATConv(512, 40, heads=1, concat=False)

        def forward(self, x, edges):
            x = F.elu(self.first(F.dropout(x, 0.5, self.training), edges))
            x = F.elu(self.second(F.dropout(x, 0.5, self.training), edges))
            return self.last(x, edges)

    model = Net().to(GPU)
    x = torch.randn(100_000, 128, device=GPU)
    edges = torch.randint(100_000, (2, 2_000_000), device=GPU)
    labels = torch.randint(40, (100_000,), device=GPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x, edges), labels).backward()
        optimizer.step()

    return loop(step, options)


def lstm(options):
    """A language model of two LSTM layers, as PyTorch's example has it."""
    with GPU:
        words, head = nn.Embedding(33278, 1024), nn.Linear(1024, 33278)
        recurrent = nn.LSTM(1024, 1024, 2, dropout=0.2)
    model = nn.ModuleList([words, recurrent, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step():
        ids = torch.randint(33278, (128, 64), device=GPU)
        states, _ = recurrent(F.dropout(words(ids), 0.2))
        loss = F.cross_entropy(head(states).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    return loop(step, options)


def denoiser(options):
    """A diffusion transformer: adaptive norms, a moving average of the weights."""

    class Adaptive(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.block = Block(width, 16)
            self.scale = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

        def forward(self, x, condition):
            shift, scale = self.scale(condition).chunk(2, dim=1)
            return self.block(x * (1 + scale[:, None]) + shift[:, None])

    class Denoiser(nn.Module):
        def __init__(self, width=1152, layers=16):
            super().__init__()
            self.patches = nn.Conv2d(4, width, 2, stride=2)
            self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
            self.blocks = nn.ModuleList(Adaptive(width) for _ in range(layers))
            self.out = nn.Linear(width, 16)

        def forward(self, x, moments):
            angles = moments[:, None] * torch.exp(-torch.arange(128, device=GPU) / 16)
            condition = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
            y = self.patches(x).flatten(2).transpose(1, 2)
            for block in self.blocks:
                y = block(y, condition)
            return F.pixel_shuffle(self.out(y).transpose(1, 2).unflatten(2, (16, 16)), 2)

    with GPU:
        model = Denoiser()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        clean = torch.randn(32, 4, 32, 32, device=GPU)
        noise, moments = torch.randn_like(clean), torch.rand(32, device=GPU)
        mixed = clean + moments[:, None, None, None] * (noise - clean)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            predicted = model(mixed, moments)
        F.mse_loss(predicted.float(), noise - clean).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.mul_(0.999).add_(new, alpha=0.001)

    return loop(step, options)


# Dearest to learn from first: a run that is stopped keeps what it had.
CASES = {
    case.__name__: case
    for case in (
        gpt,
        llama,
        qwen_trainer,
        llama_small,
        bert,
        vit,
        resnet,
        llama_lora,
        llama_fsdp2,
        gpt_ddp,
        gpt_small,
        llama_checkpointed,
        graph_attention,
        lightning,
        llama_packed,
        denoiser,
        gpt_fp16_scaled,
        gpt_compiled,
        qwen_experts,
        llama_eager_attention,
        convnext,
        lstm,
        resnet_float,
        bert_small,
        llama_compiled,
    )
}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    result = CASES[options.case](options)
    print(json.dumps({"case": options.case, **result}), flush=True)


if __name__ == "__main__":
    main()
