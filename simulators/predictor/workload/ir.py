"""The IR: typed device-level operations, grouped into blocks that are stored once.

A block says what one rank does for one piece of the model in one pass (a transformer layer
forward, the head backward, the optimizer). It holds shapes and bytes, never seconds. Sources
(``megatron`` here, traces later) produce blocks; kernels and collectives price their
operations; replay puts the priced blocks on a timeline.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

# Of kernels for one expert each, so many take the host what a launch does (``group_launches``).
GROUPS_A_LAUNCH = 8


def group_launches(groups: int, each: int = 1) -> int:
    """Launches that as many as ``each`` kernels for every expert take the host.

    Transformer Engine launches those from C++, products dealt out over streams, in a fraction of
    what a module of the framework takes: some 5 us against 40. So are PyTorch's own operations:
    2 to 3 us of a CPU core each, forward or backward, before they come to a driver.
    """
    return 1 + each * groups // GROUPS_A_LAUNCH


@dataclass(frozen=True, slots=True)
class Gemm:
    """``C[m, n] = A[m, k] B[k, n]``, ``batch`` times; layout in BLAS terms.

    TN is a forward ``x W^T``, NN the input gradient, NT the weight gradient.
    ``accumulate``: bytes an element of the main gradient that a weight gradient is added into; 0:
    it is written. ``within``: the class of fused kernels that compute it (``products`` of the
    architecture) and keep operands and result on chip. ``estimated``: it stands for a part of a
    kernel that no timing holds.
    """

    name: str
    m: int
    n: int
    k: int
    dtype: str
    batch: int = 1
    layout: str = "TN"
    accumulate: int = 0
    within: str = field(default="", repr=False)
    estimated: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """``groups`` GEMMs of ``m_per_group x n x k`` (experts of one rank).

    For layout NT (weight gradient) each group computes ``C[n, k]`` over its ``m_per_group`` rows.
    ``one_kernel``: a grouped kernel computes all, instead of one product launched after another.
    """

    name: str
    groups: int
    m_per_group: int
    n: int
    k: int
    dtype: str
    layout: str = "TN"
    accumulate: int = 0
    one_kernel: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused (flash) attention over ``batch`` sequences of local heads.

    ``seq_q``/``seq_k`` are tokens on this rank; ``pass_`` is ``fwd`` or ``bwd``. FLOPs forward:
    ``2 batch heads seq_q seq_k (head_dim + head_dim_v)``, halved when causal; backward x2.5.
    ``kernel`` is the generation: "flash", the newest the GPU has (FlashAttention-3 or cuDNN on
    Hopper, cuDNN on Blackwell), "flash2", FlashAttention-2 on any GPU, "flash1", the first, or
    "flash1_triton".
    ``dropout``: of the probabilities. ``estimated`` as in Gemm.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    head_dim_v: int
    causal: bool
    pass_: str
    dtype: str
    kernel: str = "flash"
    estimated: bool = field(default=False, repr=False)
    dropout: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """One pass of a convolution over ``batch`` images of ``in_size`` pixels (one to three axes).

    ``pass_`` is ``fwd``, ``dgrad`` (gradient of the input) or ``wgrad`` (of the filter); sizes are
    those of the forward pass in all three. ``kernel``, ``stride``, ``padding`` and ``dilation``
    have one entry an axis. ``dtype`` is the arithmetic: "tf32" is what cuDNN makes of fp32 tensors
    unless told otherwise (``torch.backends.cudnn.allow_tf32``). ``channels_last``: NHWC in memory.
    """

    name: str
    batch: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    dtype: str
    pass_: str = "fwd"
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    channels_last: bool = False

    @property
    def out_size(self) -> tuple[int, ...]:
        """Pixels of the output along each axis."""
        axes = zip(
            self.in_size, self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return tuple(
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, padding, dilation in axes
        )

    @property
    def flops(self) -> int:
        """2 x multiplications, the same in each pass."""
        positions = self.batch * math.prod(self.out_size) * math.prod(self.kernel)
        return 2 * positions * self.in_channels * self.out_channels // self.groups


@dataclass(frozen=True, slots=True)
class Streaming:
    """A memory-bound kernel: ``bytes`` read plus written.

    ``kind`` is its class: elementwise, activation, norm_fwd, norm_bwd (``_plain``: as PyTorch has
    them), softmax_fwd, softmax_bwd, dropout, cross_entropy, embedding, embedding_bwd, optimizer,
    cast, permute (by PyTorch's kernels), token_permute (by experts'), memcpy, reduce, scan_fwd,
    scan_bwd, delta_fwd, delta_bwd, conv_fwd, conv_bwd, norm_bwd_groups (these seven: what mixers
    with a state move).
    ``launches`` counts kernels that share those bytes (each pays the launch floor).
    """

    name: str
    kind: str
    bytes: int
    launches: int = 1


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """The host's CPU updates parameters: ``gradient_bytes`` come to its memory, of which it reads
    and writes ``host_bytes``, ``parameter_bytes`` go back. ``pipelined``: all three at once."""

    name: str
    gradient_bytes: int
    host_bytes: int
    parameter_bytes: int
    pipelined: bool


@dataclass(frozen=True, slots=True)
class Collective:
    """One NCCL call. ``bytes`` is NCCL's size: the larger of one rank's total send and receive.

    All-reduce, broadcast: the buffer. All-gather, reduce-scatter: ranks x the per-rank block.
    All-to-all: one rank's whole send buffer. ``communicator`` is a dimension's name, resolved
    to ranks by ``workload.communicators``. ``overlaps``: how many of the kernels that follow it
    in the block run beside it; the block waits for it after those (0: it blocks the compute).
    ``stored_bytes``: what kernels that store tokens where they are used read and write in this
    rank's memory (0: NCCL's own, which copy through buffers). ``in_product``: the product that it
    runs beside issues it (Transformer Engine's user buffers), in no call of its own.
    """

    name: str
    kind: str
    bytes: int
    communicator: str
    dtype: str = "bf16"
    overlaps: int = 0
    stored_bytes: int = 0
    in_product: bool = False


@dataclass(frozen=True, slots=True)
class SendRecv:
    """A point-to-point exchange of ``bytes`` with a neighbour; ``overlaps`` as in Collective.
    ``paired``: a send and a receive launched by themselves, each over a communicator that has no
    ranks but the two."""

    name: str
    bytes: int
    communicator: str = "pp"
    overlaps: int = 0
    paired: bool = False


@dataclass(frozen=True, slots=True)
class HostSync:
    """The host waits until everything launched before this point has run.

    It needs a value from the device, such as how many tokens each expert received.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Alloc:
    """``bytes`` that stay live after the block ends, under ``tag``, until a ``Free``."""

    tag: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Free:
    """Releases what an ``Alloc`` with this tag and size took."""

    tag: str
    bytes: int


def is_of_a_mixer(op: object) -> bool:
    """Whether it stands for a part of the fused kernels of a mixer with a state."""
    kind = op.kind if isinstance(op, Streaming) else getattr(op, "within", "")
    return kind.startswith(("scan_", "delta_", "conv_", "norm_bwd_groups"))


# What transformers consist of, and what else traced models may.
TransformerKernel = Gemm | GroupedGemm | Attention | Streaming
Kernel = TransformerKernel | Convolution
Op = Kernel | Collective | SendRecv | HostUpdate | HostSync | Alloc | Free


# Copies of weights that autocast keeps until it ends, though no backward pass needs them.
CACHED = "cached"


def weight_elements(op: Op) -> int:
    """Elements of the weights whose gradients a product makes."""
    if isinstance(op, Gemm):
        return op.m * op.n * (op.layout == "NT" and op.batch == 1)
    return op.groups * op.n * op.k * (op.layout == "NT") if isinstance(op, GroupedGemm) else 0


class Digest:
    """A value as a key that is hashed once, however often it is looked up."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value, self._hash = value, hash(value)

    def __reduce__(self) -> tuple[type[Digest], tuple[Hashable]]:
        # Another process hashes differently.
        return Digest, (self._value,)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Digest):
            return NotImplemented
        return self._hash == other._hash and self._value == other._value


@dataclass(frozen=True)
class Block:
    """Operations of one piece of the model in one pass, in launch order.

    ``peak_bytes`` is the most the block holds at any time beyond what is live before it,
    its own ``Alloc`` included. ``forward_ops`` of the operations are issued by forward passes,
    recomputed ones included, the others by autograd. Hooks of what shards its parameters run with
    it as with so many ``units``; Python goes through the parameters of ``listed`` layers one by
    one. ``moments`` are where a backward block may hold most: so many bytes less than
    ``peak_bytes``, with gradients of so many weights; traced ones have none. Equality is by
    content, but for those: ``digest`` names it.
    """

    name: str
    ops: tuple[Op, ...]
    peak_bytes: int = field(default=0)
    forward_ops: int = 0
    units: float = 0.0
    listed: int = 0
    moments: tuple[tuple[int, int], ...] = field(default=((0, 0),), compare=False)

    @cached_property
    def digest(self) -> Digest:
        """Stands for the content, in which the name does not enter, as a key."""
        return Digest((self.ops, self.peak_bytes, self.forward_ops, self.units, self.listed))

    @cached_property
    def communicators(self) -> tuple[str, ...]:
        """Names of those that its operations use."""
        return tuple(
            dict.fromkeys(
                op.communicator for op in self.ops if isinstance(op, (Collective, SendRecv))
            )
        )

    @cached_property
    def waits(self) -> tuple[int, ...]:
        """How often the host waits before each operation of the device; what it waits for last is
        before the first of the next block, which is equal."""
        counts = [0]
        for op in self.ops:
            if isinstance(op, HostSync):
                counts[-1] += 1
            elif not isinstance(op, (Alloc, Free)):
                counts.append(0)
        last = counts.pop()
        return (counts[0] + last, *counts[1:]) if counts else ()

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes live after the block that were not before (negative: it frees)."""
        total = 0
        for op in self.ops:
            if isinstance(op, Alloc):
                total += op.bytes * (op.tag != CACHED)
            elif isinstance(op, Free):
                total -= op.bytes
        return total

    @cached_property
    def cached_bytes(self) -> int:
        """Bytes that stay until all of the model's forward pass has ended, and no longer."""
        cached = (op for op in self.ops if isinstance(op, Alloc) and op.tag == CACHED)
        return sum(op.bytes for op in cached)


@dataclass(frozen=True, slots=True)
class Communicator:
    """A NCCL communicator as the network sees it.

    ``ranks_per_node`` counts members inside one NVLink domain, ``nodes`` the domains spanned
    (``size = ranks_per_node * nodes``). ``siblings`` is how many equal communicators of the
    same kind share one node's NICs at the same time; ``reach`` how many servers (or domains, where
    those are larger) lie from its first to its last, those between that it leaves out included (0:
    as many as it spans), and ``servers`` how many it spans (0: not known where they hold several
    domains). ``collnet``: NCCL may let switches sum for it (NCCL_COLLNET_ENABLE).
    """

    name: str
    size: int
    ranks_per_node: int
    nodes: int
    siblings: int = 1
    reach: int = 0
    servers: int = 0
    collnet: bool = False

    def __hash__(self) -> int:
        return hash((self.name, self.size, self.ranks_per_node))

    @property
    def pair(self) -> Communicator:
        """Two neighbours by themselves, on two nodes where it spans several."""
        nodes, servers = min(self.nodes, 2), min(self.servers, 2)
        return replace(self, size=2, ranks_per_node=2 // nodes, nodes=nodes, servers=servers)


_SIZES = attrgetter("m", "n", "k", "batch")
_GROUPED_SIZES = attrgetter("m_per_group", "n", "k", "groups")
_GROUPED_GRADIENT_SIZES = attrgetter("n", "k", "m_per_group", "groups")


def product_sizes(op: Gemm | GroupedGemm) -> tuple[int, int, int, int]:
    """m, n, k of one product and how many there are; a grouped weight gradient sums over the
    group's rows."""
    sizes: tuple[int, int, int, int]
    if isinstance(op, GroupedGemm):
        sizes = (_GROUPED_GRADIENT_SIZES if op.layout == "NT" else _GROUPED_SIZES)(op)
    else:
        sizes = _SIZES(op)
    return sizes


def kernel_flops(kernel: Kernel) -> int:
    """2 x multiplications of a kernel; 0 for memory-bound ones."""
    if isinstance(kernel, Gemm | GroupedGemm):
        return 2 * math.prod(product_sizes(kernel))
    if isinstance(kernel, Convolution):
        return kernel.flops
    if isinstance(kernel, Attention):
        heads = kernel.batch * kernel.heads * kernel.seq_q * kernel.seq_k
        forward = 2 * heads * (kernel.head_dim + kernel.head_dim_v) // (2 if kernel.causal else 1)
        return forward * 5 // 2 if kernel.pass_ == "bwd" else forward
    return 0
