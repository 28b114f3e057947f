"""What GPUs of one architecture have in common, as data: ``conf/architecture/NAME.yaml``.

An architecture says who makes it, what its kernels can do, how its links and the collective
library that drives them behave, and what a process on it takes. No code asks for an
architecture's name: it reads these figures. ``generic.yaml``, which other files start from, is
the one place that declares, with how it was chosen, what an architecture without measurements is
taken to be; kernels and links without fits are priced with the median of the fitted ones
(``kernels.choice``, ``collectives.transport``), as *estimated*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from .errors import InputError, require_choice, require_positive

# Fused attention kernels that a framework may ask for.
ATTENTION_KERNELS = ("flash", "flash2", "flash1", "flash1_triton")
# Figures of a collective library since the release named: one, or one for 1, 2 and more nodes.
ByRelease = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class StreamingShare:
    """A class of memory-bound kernels: its share of the declared DRAM bandwidth for tensors beyond
    the last cache (of products within fused kernels: of the tensor cores' peak), and whether that
    was measured on a GPU of the architecture."""

    value: float
    measured: bool
    source: str


@dataclass(frozen=True)
class CollectiveFacts:
    """What the collective library and its tuning model know of an architecture.

    Rates are in GB/s (1e9 bytes/s), as libraries print them; a cap without rows is none.
    """

    multicast: bool
    """Switches reduce and multicast (NVLS); needs ``cluster.nvswitch``."""
    ll128: bool
    """128-byte stores arrive whole, which the LL128 protocol relies on."""
    exempts_slow_channels: bool
    """More than four channels below 50 GB/s are not split in two by the channel search."""
    doubles_few_channels: bool
    """Between nodes, fewer than 16 channels above 45 GB/s become twice as many."""
    channels_of_ranks: dict[str, int]
    """SMs a call holds by its ranks in a node or over "nodes", where not as many as links need."""
    ring_plateau: float
    """Factor of a long all-reduce's latency between nodes."""
    nvls_channels: int
    """Channels of NVLS kernels on one node."""
    net_nvls_channels: int
    """The same on several nodes."""
    nvls_efficiency: float
    """Share of a link that NVLS reaches in the tuning model."""
    link_gbs: ByRelease
    """One link in the library's topology model; empty: ``link_share`` of the rate on paper."""
    link_share: float
    link_gbs_of_capability: dict[str, float]
    """``link_gbs`` of parts with another compute capability than the rest."""
    ll_cap_gbs: ByRelease
    """Ceiling of the LL protocol over all channels on one node."""
    ring_ll128_channel_cap_gbs: ByRelease
    tree_ll128_channel_cap_gbs: ByRelease
    tree_channel_cap_gbs: ByRelease
    nvls_tree_channel_cap_gbs: ByRelease
    """Of two nodes, and of more."""
    channel_speeds_gbs: ByRelease
    """Speeds that the channel search tries on one node, descending."""
    net_channel_speeds_gbs: ByRelease
    """The same on several nodes."""
    local_channel_gbs: float
    """What one channel of a transfer carries inside a node."""
    local_channels_measured: bool
    """Whether that was measured on the architecture."""
    coefficients_of: str
    """Architecture whose fitted coefficients of links serve (``conf/transport/nvlink.yaml``);
    empty: none, the median of the fitted ones."""
    measured_capabilities: tuple[float, ...]
    """Compute capabilities among the fitted measurements."""

    def by_release(self) -> Iterator[tuple[str, ByRelease]]:
        """The fields that changed between releases of the library, by name."""
        for entry in fields(self):
            if entry.type == "ByRelease":
                yield entry.name, getattr(self, entry.name)


@dataclass(frozen=True)
class UsualServer:
    """The machine a GPU of the architecture usually comes in: what published runs leave out."""

    nic_gbps: float
    """NIC rate a GPU."""
    cpu: str
    """Vendor of the host's."""
    nvswitch: bool
    """Switches join its GPUs."""
    year: float
    """When people trained on it."""
    gpus_per_node: int = 8
    """GPUs of a node."""
    nvlink_domain: int | None = None
    """How many GPUs links join where that is not a node, fewer by bridges or more in a rack."""
    host_memory_bytes: float = 2.0e12
    """A node's host memory."""
    host_memory_bytes_per_s: float = 614.4e9
    """Peak of a node's host memory, all sockets together."""


@dataclass(frozen=True)
class Architecture:
    """One GPU architecture. ``sources`` says of a field where its figure is from."""

    name: str
    vendor: str
    """Who makes it: nvidia, amd, ..."""
    runtime: str
    """What a process on the device runs on (CUDA, HIP)."""
    library: str
    """The collective library (NCCL, RCCL); ``cluster.nccl_version`` is its release."""
    link: str
    """What joins the GPUs of a node (NVLink, Infinity Fabric)."""
    attention_kernels: tuple[str, ...]
    """Fused attention that its software has: flash (the newest), flash2, flash1, flash1_triton."""
    newest_attention: str
    """The published generation that ``flash`` is here."""
    attention_of: str
    """Whose fused attention runs here too ("": its own)."""
    gemm_tiles: tuple[str, ...]
    """Tile shapes that a fit of matrix products tries."""
    misaligned_factors: dict[str, float]
    """Slowdown of tensor-core products whose contiguous dimension is only a multiple of so many
    elements (8 and more: none)."""
    split_accumulation_factor: float
    """Slowdown of 8-bit gradient products whose partial sums are added up in fp32."""
    per_tensor_factor: float
    """Time of 8-bit products scaled by tensor over that of the products their rates were fitted
    to, which where ``microscaling`` is near to that of blocks of 32."""
    fp8_transposes: bool
    """8-bit products need transposed copies of their operands in the backward pass."""
    microscaling: bool
    """Tensor cores scale blocks of 32 values (mxfp8)."""
    measurement_spread: float
    """Median relative difference between measuring campaigns on one GPU."""
    context_bytes: int
    """Device memory of a process's context with loaded kernels."""
    workspace_bytes: int
    """Scratch that PyTorch gives matrix products, out of its allocator: for each thread's handle,
    that of forward and that of backward passes."""
    transformer_engine_workspace_bytes: int
    """The same of Transformer Engine, for each stream that its products run on."""
    speed_spread: float
    """Standard deviation of GPUs' speeds as a share of it (``replay.prices``)."""
    collectives: CollectiveFacts
    usual_server: UsualServer
    streaming: dict[str, StreamingShare]
    products: dict[str, StreamingShare]
    sources: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def without_sources(self) -> Architecture:
        """The same figures, wherever they are from."""
        streaming, products = (
            {kind: replace(share, source="") for kind, share in shares.items()}
            for shares in (self.streaming, self.products)
        )
        return replace(self, streaming=streaming, products=products, sources={})

    def check(self) -> None:
        where = "architecture"
        sizes = ("context_bytes", "workspace_bytes", "transformer_engine_workspace_bytes")
        for name in (*sizes, "speed_spread", "measurement_spread"):
            require_positive(f"{where}.{name}", getattr(self, name), allow_zero=True)
        require_positive(f"{where}.split_accumulation_factor", self.split_accumulation_factor)
        for multiple, factor in self.misaligned_factors.items():
            if not multiple.isdecimal() or multiple == "0":
                entry = f"{where}.misaligned_factors"
                raise InputError(entry, multiple, "is not a number of elements", "1, 2, 4")
            require_positive(f"{where}.misaligned_factors.{multiple}", factor)
        for kernel in self.attention_kernels:
            require_choice(f"{where}.attention_kernels", kernel, ATTENTION_KERNELS)
        for name, shares in (("streaming", self.streaming), ("products", self.products)):
            for kind, share in shares.items():
                require_positive(f"{where}.{name}.{kind}.value", share.value)
        for name, table in self.collectives.by_release():
            for release, row in table.items():
                entry = f"{where}.collectives.{name}.{release}"
                if not re.fullmatch(r"\d+\.\d+\.\d+", release):
                    raise InputError(entry, release, "is not a release", "major.minor.patch")
                if not row or any(not figure > 0 for figure in row):
                    raise InputError(entry, list(row), "is out of range", "figures > 0")

            if list(table) != sorted(table, key=lambda text: [*map(int, text.split("."))]):
                entry = f"{where}.collectives.{name}"
                raise InputError(entry, ", ".join(table), "are not releases in ascending order")
