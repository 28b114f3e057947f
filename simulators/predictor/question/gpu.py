"""One accelerator, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)
from trainscout.simulators.predictor.question.training import PRECISIONS, TENSOR_CORE_TYPE

ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Rates are published dense peaks in FLOP/s, bytes/s per direction.

    ``name`` is what results call it, and whose fitted kernels it runs, if there are any;
    ``architecture``: the generation, which chooses kernels and NCCL's tuning;
    ``compute_capability``: CUDA's number of it; ``sms``: streaming multiprocessors that kernels
    run on. ``peak_flops``: dense tensor-core peak by precision; ``memory_bytes``: what nvidia-smi
    reports in total; ``memory_bandwidth_bytes_per_s``: peak of its DRAM; ``l2_bytes``: its L2
    cache. ``nvlink_generation``: 0 without NVLink. ``nvlink_bytes_per_s`` is per GPU and
    direction, ``nvlink_links`` the link count that NCCL sees; ``pcie_bytes_per_s``: its PCIe slot;
    ``price_usd_per_hour`` an assumption to override (``gpu.price_usd_per_hour=``). ``sources``
    maps a field to where its figure was published.
    """

    name: str
    architecture: str
    compute_capability: float
    sms: int
    peak_flops: dict[str, float]
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    l2_bytes: int
    nvlink_generation: int
    nvlink_links: int
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    price_usd_per_hour: float
    sources: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, self.sms, self.memory_bytes, self.memory_bandwidth_bytes_per_s))

    def check(self) -> None:
        for name in ("sms", "memory_bytes", "memory_bandwidth_bytes_per_s", "l2_bytes"):
            require_positive(f"gpu.{name}", getattr(self, name))
        for name in ("nvlink_links", "nvlink_bytes_per_s", "price_usd_per_hour"):
            require_positive(f"gpu.{name}", getattr(self, name), allow_zero=True)
        require_positive("gpu.pcie_bytes_per_s", self.pcie_bytes_per_s)
        require_choice("gpu.architecture", self.architecture, ARCHITECTURES)
        for precision, rate in self.peak_flops.items():
            require_choice("gpu.peak_flops", precision, PRECISIONS)
            require_positive(f"gpu.peak_flops.{precision}", rate)

    def peak(self, precision: str) -> float:
        """Dense peak in FLOP/s.

        Raises:
            InputError: when this GPU has no such tensor precision.
        """
        arithmetic = TENSOR_CORE_TYPE.get(precision, precision)
        if arithmetic not in self.peak_flops:
            raise InputError(
                "training.precision",
                precision,
                f"is not supported by {self.name}",
                self.peak_flops,
            )
        return self.peak_flops[arithmetic]
