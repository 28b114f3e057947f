"""What a search holds fixed: everything of a job except its recipe."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .cluster import Cluster
from .errors import InputError
from .framework import UNDECLARED, Framework
from .gpu import Gpu
from .job import Job
from .model import Model
from .recipe import Recipe
from .training import PRECISION_BITS, Training

# Beyond what anybody trained with: published steps have up to 0.13 billion tokens.
_MOST_TOKENS_A_STEP = 1e9
# A launch alone takes several times as long.
_LEAST_CALL_US = 1.0
# Of a call between nodes whose bandwidth shows: smaller ones take what the start takes.
_LEAST_LONE_BYTES = 1 << 20


class Limit(NamedTuple):
    """What a quantity lies between, zero aside, its unit, and the units that people mix it up
    with, as parts of it."""

    least: float
    most: float
    unit: str
    others: tuple[float, ...]


_BILLIONS = (1e9, 1e12, 1e6)
LIMITS = {
    "cluster.nic_gbps": Limit(0.5, 2e4, "Gb/s", (1e-9, 1e-6, 1e-3, 1e3)),
    "gpu.memory_bytes": Limit(1e8, 1e13, "bytes", _BILLIONS),
    "gpu.memory_bandwidth_bytes_per_s": Limit(1e11, 1e14, "bytes/s", _BILLIONS),
    "gpu.nvlink_bytes_per_s": Limit(1e9, 1e13, "bytes/s", _BILLIONS),
    "gpu.pcie_bytes_per_s": Limit(1e8, 1e13, "bytes/s", _BILLIONS),
    "gpu.peak_flops": Limit(1e11, 1e17, "FLOP/s", (1e12, 1e9)),
    "gpu.price_usd_per_hour": Limit(1e-4, 50.0, "US dollars an hour of one GPU", (1e-2,)),
    "gpu.sms": Limit(1, 2000, "streaming multiprocessors", ()),
    "training.tokens": Limit(1e5, 1e17, "tokens", _BILLIONS),
}


def check_plausible(question: Question) -> None:
    """Refuse what must be in another unit than its field.

    Raises:
        InputError: naming the field, and the value that was likely meant.
    """
    for field, name, value in _quantities(question):
        limit = LIMITS[name]
        if value and not limit.least <= value <= limit.most:
            meant = (value * factor for factor in limit.others)
            found = next((each for each in meant if limit.least <= each <= limit.most), None)
            problem = f"is implausible in {limit.unit}"
            allowed = f"{limit.least:g}..{limit.most:g}"
            nearest = None if found is None else f"{found:g}"
            raise InputError(field, value, problem, allowed, nearest)
    training = question.training
    sequences = training.global_batch_size
    length = training.sequence_length or question.model.sequence_length
    if sequences * length > _MOST_TOKENS_A_STEP:
        problem = f"is in sequences, and so many of {length:,} tokens are beyond any run"
        near = str(max(1, round(sequences / length)))
        most = f"1..{int(_MOST_TOKENS_A_STEP / length)}"
        raise InputError("training.global_batch_size", sequences, problem, most, near)
    cluster, gpu = question.cluster, question.gpu
    nics_gbs = cluster.nics_per_node * cluster.nic_gbps / 8
    inside_gbs = max(nics_gbs, gpu.nvlink_bytes_per_s / 1e9, gpu.pcie_bytes_per_s / 1e9)
    field, file = "cluster.measured_collectives", cluster.measured_collectives
    for row in cluster.measured:
        servers = cluster.domain / cluster.gpus_per_node
        between = row.nodes > max(1, servers)
        link_gbs = servers * nics_gbs if between and nics_gbs else inside_gbs
        # What switches sum counts twice; Gb/s would be eight times as many.
        if row.bus_gbs > 4 * link_gbs:
            problem = f"has {row.kind} at {row.bus_gbs:g} GB/s over links of {link_gbs:g}"
            allowed = f"bus bandwidth in GB/s, at most {4 * link_gbs:g}"
            raise InputError(field, file, problem, allowed)
        took_us = 2 * row.bytes / row.bus_gbs / 1e3
        if took_us < _LEAST_CALL_US:
            problem = f"has {row.kind} of {row.bytes} bytes at {row.bus_gbs:g} GB/s"
            allowed = f"bytes, not KiB or MiB: no call takes less than {_LEAST_CALL_US:g} us"
            raise InputError(field, file, problem, allowed)
        largest = max(each.bytes for each in cluster.measured if each.kind == row.kind)
        if between and largest < _LEAST_LONE_BYTES:
            problem = f"has {row.kind} of at most {largest} bytes, which tell of a call's start"
            allowed = f"larger ones besides, of {_LEAST_LONE_BYTES} bytes or more"
            raise InputError(field, file, problem, allowed)


def _quantities(question: Question) -> Iterator[tuple[str, str, float]]:
    """Field as a user writes it, name in ``LIMITS``, value."""
    for name in LIMITS:
        part, _, field = name.partition(".")
        value = getattr(getattr(question, part), field)
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", name, each) for key, each in value.items())
        else:
            yield name, name, value


@dataclasses.dataclass(frozen=True, repr=False)
class Question:
    """The model, hardware and training that every recipe of one search shares."""

    model: Model
    gpu: Gpu
    cluster: Cluster
    training: Training
    framework: Framework = UNDECLARED

    def __repr__(self) -> str:
        # All fields fill pages, of which a session shows every one.
        hardware = f"{self.cluster.num_gpus:,} x {self.gpu.name}"
        length = self.training.sequence_length or self.model.sequence_length
        batch = f"{self.training.global_batch_size:,} x {length:,}"
        return f"<{self.model.name} on {self.cluster.name} ({hardware}), batch {batch} tokens>"

    def job(self, recipe: Recipe) -> Job:
        return Job(self.model, self.gpu, self.cluster, self.training, recipe, self.framework)

    def check(self) -> None:
        """Refuse impossible declarations."""
        for part in (self.model, self.gpu, self.cluster, self.training, self.framework):
            part.check()
        self.training.check_for(self.model)
        scans = [name for name, mixer in self.model.kinds.items() if mixer.mamba1 is not None]
        if scans and "fp32" not in self.gpu.peak_flops:
            problem = f"has no fp32, at which the scans of kind {scans[0]} compute"
            raise InputError("gpu.peak_flops", ", ".join(self.gpu.peak_flops), problem)
        check_plausible(self)

    @functools.cached_property
    def quantities(self) -> Mapping[str, int]:
        """The numbers a search space may refer to by name."""
        moe = self.model.moe
        return {
            "num_gpus": self.cluster.num_gpus,
            "num_nodes": self.cluster.num_nodes,
            "gpus_per_node": self.cluster.gpus_per_node,
            "nvlink_domain": self.cluster.domain,
            # Tenths of CUDA's compute capability; 0 of other vendors' GPUs.
            "compute_capability": round(10 * self.gpu.compute_capability)
            if self.gpu.architecture.vendor == "nvidia"
            else 0,
            # Whether the framework has schedules that split backward passes, and can.
            "splits_backward": int(
                "zb-h1" in self.framework.schedules and self.framework.fusion != "compiled"
            ),
            "num_layers": self.model.num_layers,
            "num_mtp_layers": self.model.num_mtp_layers,
            "num_heads": self.model.num_heads,
            "num_query_groups": self.model.kv_heads,
            "hidden_size": self.model.hidden_size,
            "latent_attention": int(self.model.mla is not None),
            "num_experts": 1 if moe is None else moe.num_experts,
            "padded_experts": int(moe is not None and moe.padded),
            "sequence_length": self.training.sequence_length or self.model.sequence_length,
            "linear_bits": PRECISION_BITS[self.training.precision],
            "global_batch_size": self.training.global_batch_size,
            # The whole batch where sequences become vectors: many short ones fill a GPU, and some
            # losses compare them all in one pass. 1 of models of texts.
            "pooled_batch": 1 if self.model.pooled is None else self.training.global_batch_size,
        }
