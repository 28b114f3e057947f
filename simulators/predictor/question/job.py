"""The question: which model, on which cluster, trained how, with which recipe.

Plain frozen values. ``conf/`` derives its schemas from their classes, so a field is declared,
typed and defaulted in one place.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace

from .cluster import Cluster
from .experts import Moe
from .framework import (
    UNDECLARED,
    ChosenFramework,
    Framework,
    declared_framework,
    named_framework,
)
from .gpu import Gpu
from .layout import split_by_compute, split_layers
from .model import Model
from .recipe import Recipe
from .schedule_file import is_file, read_schedule
from .schedules import Place, routes, schedule_kind
from .training import OPTIMIZERS, QUANTISED, Training
from .tuning import FROZEN, attended_length, packed_documents


@dataclass(frozen=True)
class Job:
    """One complete question: everything a simulator needs to predict one training step.

    ``framework`` is given as declared, and read as the recipe asks for it.
    """

    model: Model
    gpu: Gpu
    cluster: Cluster
    training: Training
    recipe: Recipe
    framework: Framework = UNDECLARED

    def __post_init__(self) -> None:
        declared = declared_framework(self.framework)
        framework = _chosen_framework(declared, self.recipe)
        if framework is not self.framework:
            object.__setattr__(self, "framework", framework)
        recipe = self.recipe
        # Degrees of 0 are refused later (``question.validity``).
        divides = all((recipe.tp, recipe.pp, recipe.cp, recipe.ep, self.etp))
        if recipe.grad_dtype is not None and divides and self.keeps_fp32:
            # Gradients of fp32 weights are what they are, whatever the recipe says.
            plain = replace(recipe, grad_dtype=None)
            object.__setattr__(self, "framework", _chosen_framework(declared, plain))

    @property
    def world_size(self) -> int:
        return self.cluster.num_gpus

    @property
    def is_replicated(self) -> bool:
        """Whether several ranks hold the same parameters; with etp below tp, experts can have
        replicas where nothing else has."""
        return max(self.dp * self.recipe.cp, self.expert_dp) > 1

    @property
    def gathers_units(self) -> bool:
        """Whether layers are gathered for their passes, each by itself."""
        return self.recipe.zero_stage >= (2 if self.framework.torch_wrappers else 3)

    @property
    def joins_ends(self) -> bool:
        """Whether FSDP gathers and reduces embedding and head as one unit, as it does one weight
        of both."""
        tied = self.framework.torch_wrappers and self.model.tied_embeddings
        return self.framework.one_root_unit or tied

    @property
    def hooks_units(self) -> bool:
        """Whether hooks of what shards run with every layer: of an FSDP, which Megatron-LM takes
        from ZeRO 2 on, or of DeepSpeed's ZeRO 3."""
        framework = self.framework
        wrapped = self.recipe.zero_stage >= 2 and not framework.flattens_gradients
        return self.gathers_units or framework.megatron_fsdp or (wrapped and self.is_replicated)

    @property
    def schedule(self) -> str:
        """The order of passes that runs. Without a pipeline every framework runs each backward
        pass right after its forward pass, whatever schedule is named."""
        return self.recipe.schedule if self.recipe.pp > 1 else "1f1b"

    @property
    def micro_batch_round(self) -> int:
        """Micro-batches that pass the chunks of a stage together, of which a schedule runs whole
        multiples: ``pp`` in interleaved 1F1B, two where they go both ways, 1 in others
        (breadth-first among them); all that a file has."""
        if is_file(self.schedule):
            return read_schedule(self.schedule).micro_batches
        if schedule_kind(self.schedule).both_ways:
            return 2
        interleaved = self.recipe.vpp > 1 and self.schedule in ("1f1b", "zb-h1")
        return self.recipe.pp if interleaved else 1

    @property
    def least_micro_batches(self) -> int:
        """Micro-batches without which a schedule does not run."""
        fills = self.schedule in ("dualpipe", "dualpipe-v")
        return 2 * self.recipe.pp if fills else self.micro_batch_round

    @property
    def ends_meet(self) -> bool:
        """Whether the model begins and ends on the same stage."""
        return self.recipe.pp == 1 or schedule_kind(self.schedule).ends_meet

    @property
    def routes(self) -> tuple[tuple[Place, ...], ...]:
        """The stages and chunks that micro-batches visit, in the model's order; two such routes
        hold a copy of the model each."""
        return routes(self.schedule, self.recipe.pp, self.recipe.vpp)

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
    def shard_copies(self) -> int:
        """Groups of replicas that each hold every shard."""
        return self.dp // (self.recipe.dp_shard or self.dp)

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
    def attended_length(self) -> int:
        """Tokens of the sequences that attention sees: shorter where several are packed."""
        return attended_length(self.sequence_length, self.training.packed_lengths)

    @property
    def documents(self) -> int:
        """Packed sequences of a micro-batch; 0 where none are."""
        packs = self.recipe.micro_batch * self.training.sequences_per_sample
        return packs * packed_documents(self.sequence_length, self.training.packed_lengths)

    @property
    def precision(self) -> str:
        return self.recipe.precision or self.training.precision

    @property
    def module_precision(self) -> tuple[tuple[str, str], ...]:
        """Groups of linear layers that multiply in another precision than the others."""
        return self.training.module_precision.stated if self.precision in QUANTISED else ()

    @property
    def keeps_quantised(self) -> bool:
        """Whether weights of linear layers are kept and gathered in the 8 or 4 bits in which they
        are multiplied (``recipe.fp8_param_gather``): by a sharded optimizer, and one on the host
        only where scales are delayed. Frozen ones, beside adapters, no optimizer updates (NeMo's
        ``fp8_params``, which makes the model so whatever the optimizer)."""
        recipe = self.recipe
        updated = self.training.lora is None
        if (updated and recipe.zero_stage == 0) or (
            recipe.optimizer_offload and self.precision != "fp8"
        ):
            return False
        return self.precision in self.framework.fp8_param_gather

    @property
    def autocasts(self) -> bool:
        """Whether fp32 weights are cast to 16 bits where they are used."""
        recipe, shards = self.recipe, self.framework.autocast_shards
        if not self.framework.autocast or self.precision not in ("bf16", "fp16"):
            return False
        trained = self.training.trains_weights or shards
        whole = self._keeps_whole_weights or (recipe.zero_stage == 3 and shards)
        throughout = self.framework.autocast_throughout and recipe.zero_stage < 3
        kept = throughout or (whole and recipe.pp == 1)
        return kept and trained and OPTIMIZERS[self.optimizer].has_copy

    @property
    def keeps_fp32_adapters(self) -> bool:
        """Whether adapters are kept in fp32 where they are not cast whole: DeepSpeed's are 16-bit
        ones, and FSDP's mixed precision hands out such."""
        kept = self._keeps_whole_weights and OPTIMIZERS[self.optimizer].has_copy
        return self.framework.fp32_adapters and kept

    @property
    def fp32_outputs(self) -> bool:
        """Whether 16-bit layers make fp32: those of packed weights
        (``Framework.fp32_beside_packed``) or with fp32 biases (``autocast_throughout``)."""
        framework = self.framework
        own = framework.autocast_throughout and not framework.transformer_engine
        if own and self.autocasts and self.model.linear_bias:
            return True
        packed = self.frozen_weights != "16bit" and self.recipe.zero_stage < 3
        return framework.fp32_beside_packed and packed and self.precision in ("bf16", "fp16")

    @property
    def _keeps_whole_weights(self) -> bool:
        """Whether no replica shards weights, or their optimizer."""
        stage = self.recipe.zero_stage
        return stage == 0 or (stage < 3 and not self.is_replicated)

    @property
    def keeps_fp32(self) -> bool:
        """Whether weights and gradients are kept in fp32, without a copy in fewer bits."""
        return self.precision in ("fp32", "tf32") or self.autocasts

    @property
    def replays_iterations(self) -> bool:
        """Whether CUDA graphs hold whole steps: they do not end where tokens go to experts."""
        moe, framework = self.moe, self.framework
        fused = framework.fused_experts and self.precision == "mxfp8"
        whole = moe is None or moe.padded or fused or not framework.graphs_leave_experts
        return framework.cuda_graphs and whole

    @property
    def accumulates_fp32(self) -> bool:
        """Whether gradients are added up in fp32; under a pipeline FSDP2 adds up unreduced ones,
        in the type that it reduces them in."""
        framework = self.framework
        reduced_later = framework.reduce_grads_fp32 and self.recipe.pp > 1
        return framework.accumulate_grads_fp32 or reduced_later

    @property
    def frozen_weights(self) -> str:
        """What frozen weights of layers are kept in (``Lora.frozen_weights``)."""
        lora = self.training.lora
        return "16bit" if lora is None else lora.frozen_weights

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches each data-parallel replica runs per step."""
        return self.training.global_batch_size // (self.dp * self.recipe.micro_batch)

    @property
    def attention(self) -> str:
        """The attention that runs: the framework's, unfused where the GPU has none such."""
        made, wanted = self.gpu.architecture, self.framework.attention
        kernels = made.attention_kernels
        best = made.newest_attention if wanted == "flash" else wanted
        if self.framework.masked_attention and best == "flash2" and "flash1" in kernels:
            wanted = "flash1"
        return wanted if wanted in kernels else "unfused"

    @property
    def optimizer(self) -> str:
        """The training's, with 16-bit states where the recipe asks for them."""
        halved = self.recipe.optimizer_states == "bf16" and self.training.optimizer == "adam"
        return "adam_bf16" if halved else self.training.optimizer

    @property
    def routed_model(self) -> Model:
        """The model, tokens travelling to its experts as the recipe says."""
        return _routed(self.model, self.recipe.moe_dispatcher)

    @property
    def moe(self) -> Moe | None:
        """The experts of ``routed_model``."""
        return self.routed_model.moe

    @property
    def dispatcher(self) -> str | None:
        """How tokens travel to experts; None where there are none."""
        return None if self.moe is None else self.moe.dispatcher

    @property
    def tokens_per_step(self) -> int:
        training = self.training
        return training.global_batch_size * training.sequences_per_sample * self.sequence_length

    @property
    def loading_s(self) -> float:
        """Seconds in which a rank's data loader, beside the step, delivers what one takes."""
        rate, batch = self.training.loader_samples_per_s, self.training.global_batch_size
        return 0.0 if rate is None else batch / self.dp / rate

    @property
    def forwards_beside(self) -> int:
        """Passes without gradients beside those of a micro-batch that is trained on: a teacher's,
        DPO's reference's; of KTO that of other answers, and the reference's of both."""
        dpo = self.training.dpo
        if dpo is None:
            return int(self.training.distillation is not None)
        return dpo.kto + (0 if dpo.precomputed else 1 + dpo.kto)

    @functools.cached_property
    def reference(self) -> Job | None:
        """The frozen model whose probabilities of the same micro-batches a step needs besides,
        DPO's reference or a teacher: no dropout, no predictions of further tokens; None where
        there is none."""
        training, model = self.training, self.model
        if training.distillation is not None:
            model = training.distillation.teacher
        elif not self.forwards_beside:
            return None
        model = replace(model, dropout=False, num_mtp_layers=0)
        dpo = None if training.dpo is None else replace(training.dpo, precomputed=True)
        training = replace(
            training,
            # A teacher reads what the model reads, however long it was trained on.
            sequence_length=self.sequence_length,
            lora=None,
            frozen=FROZEN,
            dpo=dpo,
            distillation=None,
        )
        return replace(self, model=model, training=training)

    @functools.cached_property
    def layers_per_chunk(self) -> tuple[tuple[int, ...], ...]:
        """Transformer layers of each pipeline stage's chunks.

        Raises:
            InputError: naming the recipe field, when the layers cannot be split as declared.
        """
        recipe, model = self.recipe, self.model
        copies = len(self.routes)
        if self.framework.split_by_compute and recipe.vpp == 1 and model.moe is None:
            layer = 4 * model.hidden_size + (3 if model.gated_mlp else 2) * model.ffn_hidden_size
            return split_by_compute(model.num_layers, recipe.pp, model.vocab_size / layer)
        split = split_layers(
            model.num_layers,
            recipe.pp,
            recipe.vpp // copies,
            first_stage=recipe.first_stage_layers,
            last_stage=recipe.last_stage_layers,
            embedding_as_layer=recipe.embedding_as_layer,
            loss_as_layer=recipe.loss_as_layer,
            mtp_layers=model.num_mtp_layers,
            layout=recipe.pipeline_layout,
            deal_out=self.framework.balanced_split,
        )
        if not (schedule_kind(self.schedule).ends_meet or is_file(self.schedule)):
            return split
        in_order = [layers for chunks in zip(*split, strict=True) for layers in chunks]
        found: dict[Place, int] = {}
        for route in self.routes:
            found |= dict(zip(route, in_order, strict=True))
        chunks = range(recipe.vpp)
        return tuple(tuple(found[stage, chunk] for chunk in chunks) for stage in range(recipe.pp))

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


def _chosen_framework(declared: Framework, recipe: Recipe) -> Framework:
    """The framework that a recipe names among a declared one and its alternatives, as the recipe
    sets it."""
    name = None if recipe.framework == declared.name else recipe.framework
    remainders = recipe.optimizer_states is not None
    chosen = (name, recipe.cuda_graphs, recipe.grad_dtype, recipe.fp8_param_gather, remainders)
    return declared if chosen == (None, None, None, None, False) else _as_set(declared, *chosen)


@functools.lru_cache(maxsize=1024)
def _as_set(
    declared: Framework,
    name: str | None,
    cuda_graphs: bool | None,
    grad_dtype: str | None,
    fp8_param_gather: bool | None,
    remainders: bool,
) -> Framework:
    found = named_framework(declared, name)
    facts = {field.name: getattr(found, field.name) for field in fields(Framework)}
    if cuda_graphs is not None:
        facts["cuda_graphs"] = cuda_graphs
    if grad_dtype == "bf16":
        facts |= {"accumulate_grads_fp32": False, "reduce_grads_fp32": False}
    elif grad_dtype == "fp32" and not found.reduces_fp32:
        facts["accumulate_grads_fp32"] = True
    if fp8_param_gather is not None:
        facts["fp8_param_gather"] = QUANTISED if fp8_param_gather else ()
    facts["master_remainders"] |= remainders
    return ChosenFramework(**facts, declared=declared)


@functools.lru_cache
def _routed(model: Model, dispatcher: str | None) -> Model:
    """One object for equal ones, which works out its layers once."""
    if model.moe is None or dispatcher is None:
        return model
    return replace(model, moe=replace(model.moe, dispatcher=dispatcher))
