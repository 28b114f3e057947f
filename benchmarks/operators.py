"""Every operator of torch on a virtual GPU, against the host: ``python -m benchmarks.operators``.

PyTorch ships its operators with sample inputs (``op_db``; it imports ``expecttest``). Up to five
samples of each and dtype run forward, backward and in place; what differs from the host in
exception, shape, dtype or exact value is listed, but for what CUDA itself does otherwise.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.virtual_cluster.emulation import ListSink, emulate

SAMPLES = 5
DTYPES = ("float32", "bfloat16", "int64", "bool")
# What CUDA answers otherwise than the host: statistics in fp32 and in evaluation, too
# (aten/src/ATen/native/cuda/Normalization.cu, layer_norm_kernel.cu); indices on the host alone; no
# rank of what is solved; and memory that nobody wrote.
UNLIKE_HOST = {
    "native_layer_norm": ("dtype",),
    "native_batch_norm": ("dtype", "shape"),
    "_native_batch_norm_legit": ("dtype", "shape"),
    "_batch_norm_with_update": ("dtype", "shape"),
    "tensor_split": ("RuntimeError",),
    "linalg.lstsq": ("shape",),
    "new_empty_strided": ("exact value",),
}


def main() -> None:
    """Print a row a kind of difference, and how many operators have none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="operators, comma-separated")
    only = parser.parse_args().only.split(",")
    gpu = load_catalogue().gpus["h100"]
    rank = emulate(ListSink(), world_size=1, rank=0, gpu=gpu)
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    chosen = [info for info in op_db if only == [""] or info.name in only]
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    samples = 0
    for info, dtype in itertools.product(chosen, (getattr(torch, name) for name in DTYPES)):
        if dtype not in info.supported_dtypes("cuda"):
            continue
        learns = dtype in info.supported_backward_dtypes("cuda")
        made = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=learns), 40))
        for sample in made[:: max(1, len(made) // SAMPLES)][:SAMPLES]:
            samples += 1
            for difference in differences(info, sample, rank.state.values.read):
                if difference.partition(": ")[2] not in UNLIKE_HOST.get(info.name, ()):
                    found[difference][info.formatted_name] += 1
    table = Table("difference", "samples", "operators")
    for difference, operators in sorted(found.items()):
        table.add_row(difference, str(operators.total()), ", ".join(operators))
    Console().print(table)
    right = len(chosen) - len(set(itertools.chain.from_iterable(found.values())))
    Console().print(f"{right} of {len(chosen)} operators right, {samples} samples")


def differences(info: Any, sample: Any, read: Callable[..., Any]) -> Iterator[str]:
    """What a sample does on the device otherwise than on the host."""
    for way, function in (("forward", info), ("in place", info.inplace_variant)):
        if function is None:
            continue
        host, device = (_outcome(function, sample, place, way) for place in ("cpu", "cuda"))
        if isinstance(host, str) or isinstance(device, str):
            # The host lacks some that the device has.
            if host not in (device, "NotImplementedError"):
                yield f"{way}: {device if isinstance(device, str) else f'no {host}'}"
        elif len(host) != len(device):
            yield f"{way}: number of results"
        else:
            pairs = zip(host, device, strict=True)
            yield from (f"{way}: {each}" for pair in pairs for each in _unlike(*pair, read))


def _unlike(expected: Any, got: Any, read: Callable[..., Any]) -> Iterator[str]:
    import torch

    unlike = [n for n in ("shape", "dtype", "layout") if getattr(got, n) != getattr(expected, n)]
    yield from unlike
    if unlike or got.layout is not torch.strided or not got.is_cuda:
        return
    reading = read(got.detach(), "benchmark")
    values = [each.detach().cdouble() for each in (reading.value, expected)]
    if reading.grade == "exact" and not torch.allclose(*values, 2e-2, 2e-2, equal_nan=True):
        yield "exact value"


def _outcome(function: Any, sample: Any, place: str, way: str) -> str | list[Any]:
    """Results and gradients, or the exception."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.detach().clone().to(place)
        return made.requires_grad_(tensor.requires_grad and way == "forward")

    arguments = (sample.input, sample.args, sample.kwargs)
    given, args, named = tree_map_only(torch.Tensor, moved, arguments)
    args, named = tree_map_only(torch.device, lambda _: torch.device(place), (args, named))
    named = {name: place if name == "device" else value for name, value in named.items()}
    torch.manual_seed(0)
    try:
        results = tree_leaves(function(given, *args, **named))
        made = [each for each in results if isinstance(each, torch.Tensor)]
        leaves = [
            each
            for each in tree_leaves((given, args, named))
            if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        sums = [each.abs().sum() for each in made if each.requires_grad]
        if sums and leaves:
            gradients = torch.autograd.grad(sums, leaves, allow_unused=True)
            made += [each for each in gradients if each is not None]
    except Exception as error:
        return type(error).__name__
    return made


if __name__ == "__main__":
    main()
