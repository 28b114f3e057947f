"""VGG-19 and ResNets under DistributedDataParallel or FSDP2.

torchrun --nproc-per-node 8 examples/vision_ddp.py --model resnet152 --batch 64
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

VGG19 = (64, 64, 0, 128, 128, 0, *[256] * 4, 0, *[512] * 4, 0, *[512] * 4, 0)
RESNETS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
CLASSES = 1000


def vgg19(image: int) -> nn.Sequential:
    """Simonyan and Zisserman 2014, configuration E; 0 is a pooling layer."""
    layers: list[nn.Module] = []
    channels = 3
    for width in VGG19:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    head = [
        *(nn.Flatten(), nn.Linear(512 * (image // 32) ** 2, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, CLASSES)),
    ]
    return nn.Sequential(*layers, *head)


class Bottleneck(nn.Module):
    """He et al. 2015, with the stride in the 3 x 3 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)),
            nn.ReLU(inplace=True),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)),
            nn.ReLU(inplace=True),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(self.main(image) + self.shortcut(image))


def resnet(blocks: tuple[int, ...]) -> nn.Sequential:
    stages = [
        nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
    ]
    channels = 64
    for index, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True)):
        stage = nn.Sequential()
        for block in range(count):
            stride = 2 if index and block == 0 else 1
            stage.append(Bottleneck(channels, width, stride))
            channels = 4 * width
        stages.append(stage)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES))
    return nn.Sequential(*stages, head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["vgg19", *RESNETS], default="resnet152")
    parser.add_argument("--batch", type=int, default=64, help="images per GPU")
    parser.add_argument("--image", type=int, default=224, help="pixels a side")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16"], default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)

    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    network = vgg19(args.image) if args.model == "vgg19" else resnet(RESNETS[args.model])
    parameters = sum(parameter.numel() for parameter in network.parameters())
    network = network.to(device, memory_format=layout)
    if args.parallel == "fsdp":
        for module in network:
            if any(True for _ in module.parameters()):
                fully_shard(module)
        fully_shard(network)
        model = network
    else:
        model = DistributedDataParallel(network, device_ids=[local_rank])
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[args.precision]
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "fp16")

    if dist.get_rank() == 0:
        print(f"{args.model}: {parameters / 1e6:.1f} M parameters, {dist.get_world_size()} GPUs")
    for step in range(args.steps):
        images = torch.randn(args.batch, 3, args.image, args.image, device=device)
        images = images.contiguous(memory_format=layout)
        labels = torch.randint(CLASSES, (args.batch,), device=device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=dtype, enabled=args.precision != "fp32"):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            print(
                f"step {step}: {1e3 * seconds:.1f} ms, {args.batch / seconds:,.0f} images/s/GPU, "
                f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, "
                f"loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
