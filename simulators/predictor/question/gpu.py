"""One accelerator: the rates that its maker publishes, and the architecture it is of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .architecture import Architecture, UsualServer
from .errors import InputError, require_choice, require_positive
from .training import PRECISIONS, arithmetic_of


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Rates are published dense peaks in FLOP/s, bytes/s per direction."""

    name: str
    """What results call it, and whose fitted kernels it runs, if there are any."""
    architecture: Architecture
    """The name of its declaration in ``conf/architecture``, or a file like those."""
    compute_capability: float
    """The number that its runtime gives it: CUDA's, or HIP's gfx version."""
    sms: int
    """Streaming multiprocessors, or compute units, that kernels run on."""
    peak_flops: dict[str, float]
    """Dense tensor-core peak by precision."""
    memory_bytes: int
    """What the driver reports in total."""
    memory_bandwidth_bytes_per_s: float
    """Peak of its DRAM."""
    l2_bytes: int
    """Its last cache."""
    nvlink_links: int
    """Links that the collective library sees."""
    nvlink_bytes_per_s: float
    """Per GPU and direction, over NVLink or what the architecture has in its place."""
    pcie_bytes_per_s: float
    """Of its PCIe slot, per direction."""
    price_usd_per_hour: float
    """An assumption to override (``gpu.price_usd_per_hour=``)."""
    pcie_staged: bool = False
    """Whether its driver lets no GPU reach another's memory over PCIe: NCCL stages it in the
    host's."""
    c2c_bytes_per_s: float = 0.0
    """Per direction to its host's memory, where a link between chips (NVLink-C2C) reaches it;
    0: PCIe does."""
    sustained_fraction: float | None = None
    """Share of the dense peak that the board's power feeds for long, where no fit says so; None:
    that of the most similar fitted GPU; 1.0: it limits nothing."""
    products_of: str = ""
    """Another GPU whose fitted matrix products it is priced by, scaled by their peaks; "": of its
    architecture the most similar one's."""
    products_reach: float | None = None
    """Share of its published dense peak that the largest products reach, where measured and no
    fit says so: over 1 where it runs at more than the clock that peak is of, so taken for every
    precision of tensor cores."""
    usual_server: UsualServer | None = None
    """The machine it usually comes in; None: that of its architecture."""
    published_as: tuple[str, ...] = ()
    """What tables of measured runs call it: regular expressions, sought in labels in lower case
    with dashes."""
    sources: dict[str, str] = field(default_factory=dict)
    """Where each field's figure was published, by field."""

    def __hash__(self) -> int:
        return hash((self.name, self.sms, self.memory_bytes, self.memory_bandwidth_bytes_per_s))

    def check(self) -> None:
        for name in ("sms", "memory_bytes", "memory_bandwidth_bytes_per_s", "l2_bytes"):
            require_positive(f"gpu.{name}", getattr(self, name))
        for name in ("nvlink_links", "nvlink_bytes_per_s", "price_usd_per_hour"):
            require_positive(f"gpu.{name}", getattr(self, name), allow_zero=True)
        if self.nvlink_links and not self.nvlink_bytes_per_s:
            problem = f"leaves {self.nvlink_links} links without a rate"
            raise InputError("gpu.nvlink_bytes_per_s", 0, problem, "> 0, or gpu.nvlink_links=0")
        require_positive("gpu.pcie_bytes_per_s", self.pcie_bytes_per_s)
        require_positive("gpu.c2c_bytes_per_s", self.c2c_bytes_per_s, allow_zero=True)
        if self.sustained_fraction is not None and not 0 < self.sustained_fraction <= 1:
            field, value = "gpu.sustained_fraction", self.sustained_fraction
            raise InputError(field, value, "is out of range", "0 < x <= 1")
        if self.products_reach is not None:
            require_positive("gpu.products_reach", self.products_reach)
        for pattern in self.published_as:
            try:
                re.compile(pattern)
            except re.error as error:
                field = "gpu.published_as"
                raise InputError(field, pattern, f"is no regular expression: {error}") from error
        for precision, rate in self.peak_flops.items():
            require_choice("gpu.peak_flops", precision, (*PRECISIONS, "fp4"))
            require_positive(f"gpu.peak_flops.{precision}", rate)

    def is_published_as(self, label: str) -> bool:
        """Whether it is called so, in lower case with dashes, by tables or by its driver."""
        patterns = self.published_as or (rf"\b{re.escape(self.name)}\b",)
        return any(re.search(rf"(?:{pattern})(?!\d)", label) for pattern in patterns)

    @property
    def server(self) -> UsualServer:
        """The machine it usually comes in."""
        return self.usual_server or self.architecture.usual_server

    @property
    def sixteen_bit(self) -> str | None:
        """The 16-bit type that it multiplies in, bfloat16 where it can; None: it has neither."""
        return next((each for each in ("bf16", "fp16") if each in self.peak_flops), None)

    @property
    def host_bytes_per_s(self) -> float:
        """Peak per direction to its host's memory."""
        return self.c2c_bytes_per_s or self.pcie_bytes_per_s

    def without_sources(self) -> Gpu:
        """The same figures, wherever they are from and whatever others call it."""
        architecture = self.architecture.without_sources()
        return replace(self, sources={}, published_as=(), architecture=architecture)

    def peak(self, precision: str) -> float:
        """Dense peak in FLOP/s.

        Raises:
            InputError: when this GPU has no such tensor precision.
        """
        arithmetic = arithmetic_of(precision)
        if arithmetic not in self.peak_flops:
            raise InputError(
                "training.precision",
                precision,
                f"is not supported by {self.name}",
                self.peak_flops,
            )
        return self.peak_flops[arithmetic]


def gpus_called(label: str, gpus: Mapping[str, Gpu]) -> list[str]:
    """Names of the GPUs that a table's or a driver's label may mean: what has it as its name, else
    all that are ``published_as`` so, else the one whose name is the longest in it."""
    plain = label.lower().replace("_", "-").replace("pci-e", "pcie")
    if exact := [name for name in (label, plain) if name in gpus]:
        return exact[:1]
    known = [name for name, gpu in gpus.items() if gpu.is_published_as(plain)]
    fitting = [name for name in known if gpus[name].published_as]
    return fitting or sorted(known, key=len)[-1:]
