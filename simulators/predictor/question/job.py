"""The question: which model, on which cluster, trained how, with which recipe.

Plain frozen values. ``conf/`` derives its schemas from these classes, so a field is
declared, typed and defaulted here and nowhere else.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.layout import split_by_compute, split_layers
from trainscout.simulators.predictor.question.model import Mla, Model, Moe

__all__ = ["Cluster", "Gpu", "Job", "Mla", "Model", "Moe", "Recipe", "Training"]

PRECISIONS = ("bf16", "fp16", "fp8", "fp8_current", "mxfp8", "fp32", "tf32")
# Linear layers in 8 bits by scaling recipe: one scale a tensor from earlier steps (``fp8``,
# delayed scaling) or from the tensor itself (``fp8_current``), or one for 32 values (``mxfp8``).
TENSOR_CORE_TYPE = {"fp8_current": "fp8", "mxfp8": "fp8"}
RECOMPUTE_MODES = ("none", "selective", "full")
# Megatron-Core's names, then what other frameworks' policies need (workload/recompute.py).
RECOMPUTE_MODULES = (
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "moe_act",
    "shared_experts",
    "qkv",
    "attn_out",
    "operations",
)
DEFAULT_RECOMPUTE_MODULES = "core_attn"
SCHEDULES = ("1f1b", "gpipe")
CP_COMM_TYPES = ("p2p", "a2a")
# Compute capability that fused attention needs: FlashAttention 2 and cuDNN's want Ampere or newer,
# the first FlashAttention ran on Turing too (Dao-AILab/flash-attention, README).
FUSED_ATTENTION_CAPABILITY = {"flash": 8.0, "flash2": 8.0, "flash1": 7.5}
ACTIVATION_BYTES = {
    "bf16": 2,
    "fp16": 2,
    "fp8": 2,
    "fp8_current": 2,
    "mxfp8": 2,
    "fp32": 4,
    "tf32": 4,
}


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


ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs and the fabric between them.

    ``name`` is what results call it, ``source`` says where it was described; ``num_nodes``: how
    many nodes; ``gpus_per_node``: GPUs in each; ``nics_per_node``: network cards in each;
    ``fabric``: the network between nodes, which chooses the transport's fitted coefficients.
    ``nvswitch``: NVLink goes through switches, so that every pair has its full rate; without,
    GPUs are wired to each other directly. ``nccl_version``: whose tuning tables choose algorithm
    and protocol. ``nvlink_domain`` is the number of GPUs joined by NVLink (72 across the trays of
    an NVL72, 2 for bridged pairs); None means one node. ``nic_gbps`` is one NIC's rate in Gb/s.
    ``cpu`` is the host CPU vendor that NCCL's tuning asks for. ``memory_reserve`` is the fraction
    of GPU memory that a recipe must leave free to be called fitting. ``oversubscription`` divides
    what leaves a node (1: a full fabric). ``nccl_algo`` and ``nccl_max_channels`` hold NCCL to
    them where it can follow, as NCCL_ALGO and NCCL_MAX_NCHANNELS do (None: its own choice).
    """

    name: str
    num_nodes: int
    gpus_per_node: int
    nics_per_node: int
    nic_gbps: float
    fabric: str
    source: str
    nvlink_domain: int | None = None
    nvswitch: bool = True
    oversubscription: float = 1.0
    cpu: str = "intel"
    nccl_version: str = "2.22"
    nccl_algo: str | None = None
    nccl_max_channels: int | None = None
    memory_reserve: float = 0.05

    def check(self) -> None:
        for name in ("num_nodes", "gpus_per_node", "oversubscription"):
            require_positive(f"cluster.{name}", getattr(self, name))
        require_positive("cluster.nics_per_node", self.nics_per_node, allow_zero=True)
        require_positive("cluster.nic_gbps", self.nic_gbps, allow_zero=True)
        require_positive("cluster.memory_reserve", self.memory_reserve, allow_zero=True)
        require_choice("cluster.fabric", self.fabric, FABRICS)
        require_choice("cluster.cpu", self.cpu, ("intel", "amd", "arm"))
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?(-\d+)?", self.nccl_version):
            field, given = "cluster.nccl_version", self.nccl_version
            raise InputError(field, given, "is not a version", "major.minor[.patch]")
        if self.nccl_algo is not None:
            require_choice("cluster.nccl_algo", self.nccl_algo, NCCL_ALGOS)
        if self.nccl_max_channels is not None:
            require_positive("cluster.nccl_max_channels", self.nccl_max_channels)
        if self.oversubscription < 1:
            raise InputError(
                "cluster.oversubscription", self.oversubscription, "is out of range", ">= 1"
            )
        if self.memory_reserve >= 1:
            raise InputError(
                "cluster.memory_reserve", self.memory_reserve, "is out of range", "0 <= x < 1"
            )
        if self.nvlink_domain is not None:
            require_positive("cluster.nvlink_domain", self.nvlink_domain)
        multi_domain = self.num_gpus > self.domain
        if multi_domain and self.num_nodes > 1 and not self.nics_per_node * self.nic_gbps:
            raise InputError(
                "cluster.nics_per_node", self.nics_per_node, "leaves nodes unconnected", ">= 1"
            )

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def domain(self) -> int:
        """GPUs joined by NVLink."""
        return self.gpus_per_node if self.nvlink_domain is None else self.nvlink_domain


NCCL_ALGOS = ("ring", "tree", "nvls", "nvls_tree")
FABRICS = ("infiniband", "roce", "efa", "slingshot", "tcpx", "ethernet", "none")


@dataclass(frozen=True)
class Training:
    """How the model is trained; lengths in tokens.

    ``global_batch_size``: sequences a step; ``tokens``: how many the whole run trains on, for its
    days and cost; ``sequence_length`` None means the model's; ``precision``: of linear layers,
    unless the recipe says another. ``optimizer`` is ``adam`` (two fp32 moments), ``sgd`` (one) or
    ``adam_bf16`` (two bf16).
    """

    global_batch_size: int
    tokens: float
    sequence_length: int | None = None
    precision: str = "bf16"
    optimizer: str = "adam"

    def check(self) -> None:
        require_positive("training.global_batch_size", self.global_batch_size)
        require_positive("training.tokens", self.tokens)
        if self.sequence_length is not None:
            require_positive("training.sequence_length", self.sequence_length)
        require_choice("training.precision", self.precision, PRECISIONS)
        require_choice("training.optimizer", self.optimizer, ("adam", "adam_bf16", "sgd"))


@dataclass(frozen=True)
class Recipe:
    """One point of the search: how the job is laid out and run.

    Megatron's names where the concept is Megatron's. ``dp`` is not a field: it follows from the
    GPU count. ``tp``: GPUs that share each layer's matrices (tensor parallelism); ``pp``: pipeline
    stages; ``cp``: GPUs that share each sequence (context parallelism); ``ep``: GPUs that share
    the experts of a layer; ``vpp``: chunks of layers a stage has (virtual pipeline stages);
    ``micro_batch``: sequences a pass takes at once. ``sp``: norms and dropout are sharded along
    the sequence over the tensor-parallel GPUs. ``recompute``: ``none`` keeps activations,
    ``selective`` repeats parts of layers in the backward pass, ``full`` whole layers.
    ``schedule``: the order of a pipeline's passes; ``precision`` takes the place of the
    training's. ``overlap_grad_reduce``: gradients are reduced beside the backward pass;
    ``overlap_param_gather``: updated parameters are gathered beside the next forward pass;
    ``tp_comm_overlap``: tensor-parallel communication is cut up and runs beside its GEMMs.
    ``etp``: tensor-parallel degree of experts; None means ``tp``. ``recompute_layers`` None means
    every layer (it counts layers per pipeline chunk, Megatron's ``block`` method, and only matters
    for ``full``); each stage recomputes ``recompute_taper`` layers per chunk fewer than the one
    before, as it has fewer micro-batches in flight. ``recompute_modules`` joins by ``+`` what
    ``selective`` recomputes (None: the attention core). ``zero_stage`` 1 is Megatron's distributed
    optimizer, 3 is FSDP. ``first_stage_layers``/``last_stage_layers`` make the split uneven; with
    ``embedding_as_layer``/``loss_as_layer`` an end of the model takes the place of a layer in it
    (Megatron's ``account-for-...-in-pipeline-split``). ``cp_comm_type``: context parallelism
    passes keys and values around a ring (``p2p``) or exchanges sequence shards for head shards
    (``a2a``, Jacobs et al. 2023). ``overlap_moe_expert_parallel_comm`` runs one micro-batch's
    exchange of tokens beside another's kernels. ``nccl_algo`` and ``nccl_max_channels`` take the
    place of the cluster's. With ``use_tp_pp_dp_mapping`` the stages of a pipeline lie next to each
    other and its replicas apart, instead of the other way round.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    cp_comm_type: str = "p2p"
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    micro_batch: int = 1
    recompute: str = "none"
    recompute_layers: int | None = None
    recompute_taper: int = 0
    recompute_modules: str | None = None
    sp: bool = False
    zero_stage: int = 1
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    tp_comm_overlap: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    schedule: str = "1f1b"
    precision: str | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    embedding_as_layer: bool = False
    loss_as_layer: bool = False
    nccl_algo: str | None = None
    nccl_max_channels: int | None = None
    use_tp_pp_dp_mapping: bool = False


@dataclass(frozen=True)
class Job:
    """One complete question: everything a simulator needs to predict one training step."""

    model: Model
    gpu: Gpu
    cluster: Cluster
    training: Training
    recipe: Recipe
    framework: Framework = UNDECLARED

    @property
    def world_size(self) -> int:
        return self.cluster.num_gpus

    @functools.cached_property
    def network(self) -> Cluster:
        """The cluster with NCCL set as the recipe asks: what communication is priced on."""
        recipe = self.recipe
        if recipe.nccl_algo is None and recipe.nccl_max_channels is None:
            return self.cluster
        return replace(
            self.cluster,
            nccl_algo=recipe.nccl_algo or self.cluster.nccl_algo,
            nccl_max_channels=recipe.nccl_max_channels or self.cluster.nccl_max_channels,
        )

    @functools.cached_property
    def dp(self) -> int:
        """Data-parallel size, context parallelism excluded."""
        recipe = self.recipe
        return self.world_size // (recipe.tp * recipe.pp * recipe.cp)

    @property
    def etp(self) -> int:
        return self.recipe.tp if self.recipe.etp is None else self.recipe.etp

    @property
    def expert_dp(self) -> int:
        """Replicas of one expert shard: world / (etp * ep * pp)."""
        return self.world_size // (self.etp * self.recipe.ep * self.recipe.pp)

    @property
    def sequence_length(self) -> int:
        return self.training.sequence_length or self.model.sequence_length

    @property
    def precision(self) -> str:
        return self.recipe.precision or self.training.precision

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches each data-parallel replica runs per step."""
        return self.training.global_batch_size // (self.dp * self.recipe.micro_batch)

    @property
    def attention(self) -> str:
        """The attention that runs: the framework's, unfused where the GPU is too old for it."""
        wanted = self.framework.attention
        oldest = FUSED_ATTENTION_CAPABILITY.get(wanted, 0.0)
        return wanted if self.gpu.compute_capability >= oldest else "unfused"

    @property
    def tokens_per_step(self) -> int:
        return self.training.global_batch_size * self.sequence_length

    @functools.cached_property
    def layers_per_chunk(self) -> tuple[tuple[int, ...], ...]:
        """Transformer layers of each pipeline stage's chunks.

        Raises:
            InputError: naming the recipe field, when the layers cannot be split as declared.
        """
        recipe, model = self.recipe, self.model
        if self.framework.split_by_compute and recipe.vpp == 1 and model.moe is None:
            layer = 4 * model.hidden_size + (3 if model.gated_mlp else 2) * model.ffn_hidden_size
            return split_by_compute(model.num_layers, recipe.pp, model.vocab_size / layer)
        return split_layers(
            model.num_layers,
            recipe.pp,
            recipe.vpp,
            first_stage=recipe.first_stage_layers,
            last_stage=recipe.last_stage_layers,
            embedding_as_layer=recipe.embedding_as_layer,
            loss_as_layer=recipe.loss_as_layer,
            mtp_layers=model.num_mtp_layers,
            deal_out=self.framework.balanced_split,
        )

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Transformer layers on each pipeline stage, first to last."""
        return tuple(sum(chunks) for chunks in self.layers_per_chunk)

    def recomputed_layers(self, stage: int) -> int | None:
        """First layers of each chunk of a stage that full recomputation repeats; None: all."""
        recipe = self.recipe
        if recipe.recompute_taper == 0:
            return recipe.recompute_layers
        most = recipe.recompute_layers or self.largest_chunk
        return max(0, most - stage * recipe.recompute_taper)

    @property
    def largest_chunk(self) -> int:
        """Layers of the chunk that holds most."""
        return max(max(chunks) for chunks in self.layers_per_chunk)
