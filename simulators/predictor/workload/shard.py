"""What one rank holds of a model: local sizes derived once from a job.

Everything a layer's operations depend on is a field here, so equal shards have equal blocks
and the builders can be cached on them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any

from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.framework_choices import EAGER_LOSSES
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Layer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.training import (
    ACTIVATION_BYTES,
    PRECISION_BITS,
    QUANTISED,
    operand_of,
)
from trainscout.simulators.predictor.question.tuning import Lora

from .communicators import place

# Linear layers by their group.
_MODULE = {
    **dict.fromkeys(("qkv", "q_down", "q_up", "kv_down", "kv_up"), "qkv"),
    **dict.fromkeys(("ssm_in", "delta_in", "conv_in"), "mixer_in"),
    **dict.fromkeys(("ssm_out", "delta_out", "conv_out"), "mixer_out"),
    **dict.fromkeys(("fc1", "fc2"), "mlp"),
    **dict.fromkeys(("shared_fc1", "shared_fc2"), "shared_experts"),
    **dict.fromkeys(("latent_in", "latent_out"), "latent"),
    **dict.fromkeys(("expert_fc1", "expert_fc2"), "experts"),
    "attention_output": "attn_out",
}


@dataclass(frozen=True)
class Shard:
    """One rank's share of one micro-batch.

    ``batch`` sequences of ``sequence`` tokens on this context-parallel rank (the full length
    is ``sequence * cp``), of which attention sees ``attended`` at a time, ``documents``
    in all where they are packed. The expert-parallel group spans ``ep_domains`` NVLink domains.
    ``trains``: the model's own weights have gradients.
    ``loss``: of the ``next`` token, from a teacher's probabilities (``DIVERGENCES``),
    ``log_softmax`` in 16 bits (of pairs, see ``_loss``), or ``none``. ``replicas``: data-parallel
    ranks whose sequences a contrastive loss compares, whose towers are checkpointed with the
    layers (``checkpoints_towers``).
    """

    model: Model
    batch: int
    sequence: int
    attended: int
    documents: int
    trains: bool
    lora: Lora | None
    fp32_magnitudes: bool
    autocasts_adapters: bool
    dora_of_factors: bool
    shares_expert_adapters: bool
    stacks_experts: bool
    keeps_gathered_experts: bool
    frozen_weights: str
    fp32_outputs: bool
    frozen: tuple[str, ...]
    tp: int
    cp: int
    cp_comm_type: str
    ep: int
    etp: int
    sp: bool
    tp_comm_overlap: bool
    overlap_dispatch: bool
    ep_domains: int
    precision: str
    module_precision: tuple[tuple[str, str], ...]
    fp8_transposes: bool
    quantises_weights: bool
    hadamard: bool
    fused_fp4_casts: bool
    fuses_casts: bool
    attention: str
    fp8_attention: bool
    fp8_output: bool
    stores_fp8_activations: bool
    fused_router: bool
    fused_rope: bool
    rope_by_document: bool
    order_by_document: bool
    pace_of_kernels: float
    fused_experts: bool
    loops_experts: bool
    pads_experts: bool
    delta_rule: str
    written_dispatch: str
    gathers_for_experts: bool
    repeats_deepep: bool
    masked_dispatch: str
    fusion: str
    fused_norm: bool
    norm_kernel: bool
    fused_softmax: bool
    masked_attention: bool
    attention_block: int
    tensor_core_heads: bool
    rope: str
    repeats_kv: bool
    separate_projections: bool
    joined_halves: bool
    inputs_apart: bool
    whole_embedding: bool
    batch_first: bool
    puts_batch_first: bool
    gathers_ring: bool
    keeps_gathered: bool
    saves_exchanges: bool
    pads_vocabulary: bool
    writes_gelu: bool
    recompute_stops_early: bool
    keeps_router_graph: bool
    saves_each_product: bool
    fused_wgrad: bool
    accumulate_grads_fp32: bool
    accumulates: bool
    autocast: bool
    shares_table: bool
    loss: str
    cross_entropy: str
    gathers_logits: bool
    logged_losses: int
    overlap_tp_gradients: bool
    replicas: int
    checkpoints_towers: bool
    cut_at_bytes: int

    @classmethod
    def of(cls, job: Job) -> Shard:
        """What a rank of a job holds, of a framework what fields are called as there."""
        recipe, framework = job.recipe, job.framework
        facts: dict[str, Any] = {name: getattr(framework, name) for name in _of_framework()}
        facts["accumulate_grads_fp32"] = job.accumulates_fp32
        return cls(
            model=job.routed_model,
            batch=recipe.micro_batch * job.training.sequences_per_sample,
            sequence=job.sequence_length // recipe.cp,
            attended=job.attended_length // recipe.cp,
            documents=job.documents,
            pace_of_kernels=framework.pace_of_kernels,
            trains=job.training.trains_weights,
            lora=job.training.lora,
            fp32_magnitudes=job.keeps_fp32_adapters,
            autocasts_adapters=framework.autocast,
            # DeepSpeed frees a gathered parameter by pointing it elsewhere (``free_param``): what
            # autograd saved of a linear layer is the parameter, of stacked experts a view, which
            # holds the old storage.
            keeps_gathered_experts=framework.stacks_experts
            and recipe.zero_stage == 3
            and not framework.torch_wrappers,
            frozen_weights=job.frozen_weights,
            fp32_outputs=job.fp32_outputs,
            frozen=job.training.frozen,
            tp=recipe.tp,
            cp=recipe.cp,
            cp_comm_type=recipe.cp_comm_type,
            ep=recipe.ep,
            etp=job.etp if job.model.moe else recipe.tp,
            sp=recipe.sp,
            tp_comm_overlap=recipe.tp_comm_overlap,
            overlap_dispatch=recipe.overlap_moe_expert_parallel_comm,
            ep_domains=place("ep", recipe.ep, job.etp, job).nodes if job.model.moe else 1,
            precision=job.precision,
            module_precision=job.module_precision,
            fp8_transposes=job.gpu.architecture.fp8_transposes,
            quantises_weights=PRECISION_BITS[job.precision] <= 8
            and not job.keeps_quantised
            and (recipe.zero_stage == 3 or framework.quantises_each_pass),
            hadamard=job.training.nvfp4_hadamard,
            attention=job.attention,
            puts_batch_first=_puts_batch_first(job),
            fp8_attention=recipe.fp8_dot_product_attention and job.precision in QUANTISED,
            fp8_output=recipe.fp8_output_proj and job.precision in QUANTISED,
            stores_fp8_activations=recipe.activation_func_fp8_input_store,
            fused_experts=framework.fused_experts and job.precision == "mxfp8",
            # Latent attention has a key for every head.
            repeats_kv=framework.repeats_kv
            and job.model.kv_heads < job.model.num_heads
            and job.model.mla is None,
            # Without sequence parallelism nothing is gathered.
            keeps_gathered=framework.keeps_gathered and recipe.sp,
            # Pipelines have several passes of a layer under way: it is not known for them.
            keeps_router_graph=framework.keeps_router_graph and recipe.pp == 1,
            pads_vocabulary=framework.aligns_vocabulary,
            # What was reduced is let go, and autograd keeps the first gradient as it comes.
            accumulates=not framework.torch_wrappers
            or (recipe.zero_stage < 2 and job.num_micro_batches > 1),
            autocast=job.autocasts,
            shares_table=job.model.tied_embeddings and job.ends_meet,
            loss=_loss(job),
            checkpoints_towers=recipe.recompute == "full" and job.model.pooled is not None,
            replicas=1 if job.model.pooled is None else job.model.pooled.replicas(job.dp),
            cut_at_bytes=framework.ddp_bucket_mib * 2**20 if _in_compiled_ddp(job) else 0,
            **facts,
        )

    def for_layer(self, layer: Layer) -> Shard:
        """The same with the heads of a layer."""
        model = self.model.for_layer(layer)
        return self if model is self.model else replace(self, model=model)

    def of_module(self, module: str) -> Shard:
        """The same in the precision that a group of linear layers has (``ModulePrecision``)."""
        own = dict(self.module_precision).get(module, self.precision)
        # Layers that are kept in 16 bits keep all theirs so.
        if own == self.precision or not self.is_quantised:
            return self
        return replace(self, precision=own)

    def of_product(self, name: str) -> Shard:
        """The same in the precision of linear layer ``name``."""
        return self.of_module(_MODULE.get(name, "")) if self.module_precision else self

    @property
    def moe(self) -> Moe:
        """The experts of a model that has them."""
        assert self.model.moe is not None
        return self.model.moe

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on this context-parallel rank."""
        return self.batch * self.sequence

    @property
    def local_tokens(self) -> int:
        """Tokens per rank where sequence parallelism shards them (norms, dropout, experts)."""
        return self.tokens // self.tp if self.sp else self.tokens

    @property
    def boundary_bytes(self) -> int:
        """What a stage sends to the next for a micro-batch."""
        return self.local_tokens * self.model.residual_width * self.stream_bytes

    @property
    def head_rows(self) -> int:
        """Rows of the output layer on this rank."""
        return self.model.padded_vocab_size(self.tp, self.pads_vocabulary) // self.tp

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding on this rank."""
        rows = self.head_rows * self.tp
        return rows if self.whole_embedding else rows // self.tp

    @property
    def unpacked(self) -> Shard:
        """The same tokens as the sequences that attention sees, as many as come nearest."""
        if self.attended >= self.sequence:
            return self
        number = max(self.batch, round(self.tokens / self.attended))
        return replace(self, batch=number, sequence=self.tokens // number)

    @property
    def linear_dtype(self) -> str:
        """Type of the operands of linear layers; in 8- and 4-bit jobs all else is bf16."""
        return operand_of(self.precision)

    @property
    def is_quantised(self) -> bool:
        """Whether linear layers multiply in 8 or 4 bits."""
        return self.linear_dtype in ("fp8", "fp8_block", "mxfp8", "fp4")

    @property
    def attention_dtype(self) -> str:
        """Type of what attention's products multiply: in 8 bits with one scale, or MXFP8's."""
        if not (self.fp8_attention and self.is_quantised):
            return self.dtype
        return "fp8" if self.precision in ("fp8", "fp8_current") else "mxfp8"

    @property
    def dtype(self) -> str:
        """Type of activations outside the linear layers."""
        return "bf16" if self.is_quantised else self.precision

    @property
    def element_bytes(self) -> int:
        return ACTIVATION_BYTES[self.precision]

    @property
    def fp32_adapters(self) -> bool:
        """Whether what adapters read, and their factors, are cast from and to fp32: PEFT leaves
        inputs of bitsandbytes' layers as they are."""
        return self.magnitude_bytes > self.element_bytes and self.frozen_weights == "16bit"

    @property
    def multiplies_adapters_wide(self) -> bool:
        """Whether fp32 adapters compute in fp32, as no autocast casts what they read."""
        return self.fp32_adapters and not self.autocasts_adapters

    @property
    def magnitude_bytes(self) -> int:
        """Of one of DoRA's, and in which adapted outputs are scaled."""
        return 4 if self.fp32_magnitudes else self.element_bytes

    @property
    def fused_sum_bytes(self) -> int:
        """Bytes an element of the main gradient that a product adds a weight's to itself, or 0."""
        main = 4 if self.accumulate_grads_fp32 else self.element_bytes
        return main if self.fused_wgrad else 0

    @property
    def stream_bytes(self) -> int:
        """Bytes per element of the residual stream, and in which norms run."""
        return 4 if self.autocast or self.fp32_outputs else self.element_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes per element of what most linear layers make."""
        return 4 if self.fp32_outputs else self.element_bytes

    @property
    def casts_apart(self) -> bool:
        """Whether what norms make for linear layers is cast by kernels of its own, once for each
        product (autocast keeps copies of weights only), and their gradients back."""
        wide = self.stream_bytes > self.element_bytes
        return wide and self.fusion == "eager" and not self.fused_norm

    @property
    def linear_input_bytes(self) -> float:
        """Bytes per element of a linear layer's saved input: of the quantised copy, where there
        is one. 16 values of four bits share a scale of eight; wider blocks' are left out."""
        if self.linear_dtype == "fp4":
            return 9 / 16
        return 1 if self.is_quantised else self.element_bytes

    @property
    def heads(self) -> int:
        return self.model.num_heads // self.tp

    @property
    def kv_heads(self) -> int:
        """KV heads on this rank; replicated when there are fewer groups than ranks."""
        return max(1, self.model.kv_heads // self.tp)


# What a recipe or a model has its part in, too.
_OF_RECIPE_OR_MODEL = {
    "attention",
    "autocast",
    "fused_experts",
    "repeats_kv",
    "keeps_gathered",
    "keeps_router_graph",
    "pads_vocabulary",
    "puts_batch_first",
}


def _in_compiled_ddp(job: Job) -> bool:
    """Whether what is compiled runs inside of PyTorch's DDP, whose buckets hold trained weights
    alone."""
    recipe, framework = job.recipe, job.framework
    wrapped = framework.torch_wrappers and recipe.zero_stage < 2 and job.dp * recipe.cp > 1
    trained = wrapped and job.training.trains_weights
    return trained and framework.fusion == "compiled" and recipe.pp == 1


def _puts_batch_first(job: Job) -> bool:
    """Whether attention is FlashAttention's, of software that puts its operands in order for it;
    AMD's of Transformer Engine takes them as they are."""
    made, own = job.gpu.architecture.newest_attention, job.attention
    flash = own != "unfused" and (own != "flash" or made != "flash")
    nvidia = job.gpu.architecture.vendor == "nvidia"
    return job.framework.puts_batch_first and flash and nvidia


def _loss(job: Job) -> str:
    """TRL takes 16-bit logits of pairs as they are, row by row (``trl/trainer/utils.py``:
    ``selective_log_softmax``, since 0.15); under autocast Accelerate has made them fp32."""
    framework, taught = job.framework, job.training.distillation
    if taught is not None:
        whole = taught.loss == "kl" or framework.autocast
        return taught.loss if whole else f"{taught.loss}_16bit"
    as_they_are = framework.cross_entropy in EAGER_LOSSES and not framework.autocast
    return "log_softmax" if job.training.dpo is not None and as_they_are else "next"


@functools.cache
def _of_framework() -> tuple[str, ...]:
    """Fields of a shard that a framework alone says."""
    declared = {each.name for each in fields(Framework)} - _OF_RECIPE_OR_MODEL
    return tuple(each.name for each in fields(Shard) if each.name in declared)
