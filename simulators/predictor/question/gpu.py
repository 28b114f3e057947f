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
    """One accelerator. Rates are published dense peaks in FLOP/s, bytes/s per direction."""

    name: str
    """What results call it, and whose fitted kernels it runs, if there are any."""
    architecture: str
    """The generation, which chooses kernels and NCCL's tuning."""
    compute_capability: float
    """CUDA's number of it."""
    sms: int
    """Streaming multiprocessors that kernels run on."""
    peak_flops: dict[str, float]
    """Dense tensor-core peak by precision."""
    memory_bytes: int
    """What nvidia-smi reports in total."""
    memory_bandwidth_bytes_per_s: float
    """Peak of its DRAM."""
    l2_bytes: int
    """Its L2 cache."""
    nvlink_generation: int
    """0 without NVLink."""
    nvlink_links: int
    """Links that NCCL sees."""
    nvlink_bytes_per_s: float
    """Per GPU and direction."""
    pcie_bytes_per_s: float
    """Of its PCIe slot."""
    price_usd_per_hour: float
    """An assumption to override (``gpu.price_usd_per_hour=``)."""
    sources: dict[str, str] = field(default_factory=dict)
    """Where each field's figure was published, by field."""

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
