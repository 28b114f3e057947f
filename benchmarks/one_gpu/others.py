"""Encoders, images, graphs, diffusion; timm, Lightning, PyTorch Geometric."""

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from loops import GPU, WARM, Block, Ticks, loop, supervised, tokens
from torch import nn


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


def resnet(options):
    import timm

    with GPU:
        model = timm.create_model("resnet50").train()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step():
        images = torch.randn(256, 3, 224, 224, device=GPU).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (256,), device=GPU)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return loop(step, options)


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
