"""The recipe: how a job is laid out and run, each knob declared once.

A field is a knob: its type, default and meaning stand where every dataclass has them, and what
else there is to know of it is its ``Knob``. Rules that concern several knobs at once are functions
in ``question.validity``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.question.cluster import NCCL_ALGOS
from trainscout.simulators.predictor.question.framework import (
    Framework,
    chosen_framework,
    declared_framework,
)
from trainscout.simulators.predictor.question.knob import (
    BOUNDARY,
    DEEPSPEED,
    ENVIRONMENT,
    LAYER_BLOCKS,
    LAYOUT,
    MEGATRON_BRIDGE,
    MEGATRON_LM,
    MICRO_BATCHES,
    PASSES,
    STEP_END,
    TORCHTITAN,
    Canonical,
    Flag,
    Knob,
    knob,
    knobs_of,
)
from trainscout.simulators.predictor.question.model import DISPATCHERS
from trainscout.simulators.predictor.question.training import PRECISIONS

if TYPE_CHECKING:
    from trainscout.simulators.predictor.question.job import Job

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

_REPLICAS = ("tp", "pp", "cp", "ep", "etp")
_SPLIT = (
    *("framework", "pp", "vpp", "first_stage_layers", "last_stage_layers"),
    *("embedding_as_layer", "loss_as_layer", "pipeline_layout"),
)
_UNSHARED = "there are no replicas to shard over or to reduce among"


def _unswitched(job: Job) -> Framework:
    """The framework without what the recipe sets of it."""
    return chosen_framework(
        declared_framework(job.framework), Recipe(framework=job.recipe.framework)
    )


def _modules_in_order(job: Job) -> str | None:
    ordered = "+".join(sorted(set(str(job.recipe.recompute_modules).split("+"))))
    return None if ordered == DEFAULT_RECOMPUTE_MODULES else ordered


@dataclass(frozen=True)
class Recipe:
    """One point of the search: how the job is laid out and run.

    Megatron's names where the concept is Megatron's. ``dp`` is not a field: it follows from the
    GPU count.
    """

    tp: int = knob(
        1,
        "tp{}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END, MICRO_BATCHES),
        always=True,
        search={"powers_of_two_up_to": "nvlink_domain"},
        flags={
            MEGATRON_LM: Flag("--tensor-model-parallel-size"),
            MEGATRON_BRIDGE: Flag("model.tensor_model_parallel_size"),
            TORCHTITAN: Flag("--parallelism.tensor-parallel-degree"),
        },
    )
    """GPUs that share each layer's matrices (tensor parallelism)."""
    pp: int = knob(
        1,
        "pp{}",
        (LAYOUT, BOUNDARY, MICRO_BATCHES),
        always=True,
        search={"divisors_of": "num_gpus"},
        flags={
            MEGATRON_LM: Flag("--pipeline-model-parallel-size"),
            MEGATRON_BRIDGE: Flag("model.pipeline_model_parallel_size"),
            TORCHTITAN: Flag("--parallelism.pipeline-parallel-degree"),
        },
    )
    """Pipeline stages."""
    cp: int = knob(
        1,
        "cp{}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END, MICRO_BATCHES),
        topic="context",
        search=(1, 2, 4, 8, 16, 32),
        flags={
            MEGATRON_LM: Flag("--context-parallel-size"),
            MEGATRON_BRIDGE: Flag("model.context_parallel_size"),
            TORCHTITAN: Flag("--parallelism.context-parallel-degree"),
        },
    )
    """GPUs that share each sequence (context parallelism)."""
    cp_comm_type: str = knob(
        "p2p",
        "{}",
        (LAYER_BLOCKS,),
        choices=("p2p", "a2a"),
        topic="context",
        detail_of=("cp",),
        canonical=Canonical(
            "without context parallelism nothing is exchanged",
            ("cp",),
            lambda job: job.recipe.cp == 1,
        ),
        flags={
            MEGATRON_LM: Flag("--cp-comm-type"),
            MEGATRON_BRIDGE: Flag("model.cp_comm_type"),
        },
    )
    """How context parallelism attends: keys and values are passed around a ring (``p2p``), or
    sequence shards exchanged for head shards (``a2a``, Jacobs et al. 2023)."""
    ep: int = knob(
        1,
        "ep{}",
        (LAYER_BLOCKS, STEP_END),
        topic="experts",
        search={"divisors_of": ["num_experts", "num_gpus"]},
        flags={
            MEGATRON_LM: Flag("--expert-model-parallel-size"),
            MEGATRON_BRIDGE: Flag("model.expert_model_parallel_size"),
            TORCHTITAN: Flag("--parallelism.expert-parallel-degree"),
        },
    )
    """GPUs that share the experts of a layer."""
    etp: int | None = knob(
        None,
        "etp{}",
        (LAYER_BLOCKS, STEP_END),
        left_out="tp",
        topic="experts",
        detail_of=("tp", "ep"),
        canonical=Canonical(
            "it is tp when left out", ("tp",), lambda job: job.recipe.etp == job.recipe.tp
        ),
        search=(None, 1),
        flags={
            MEGATRON_LM: Flag("--expert-tensor-parallel-size"),
            MEGATRON_BRIDGE: Flag("model.expert_tensor_parallel_size"),
        },
    )
    """Tensor-parallel degree of experts; None means ``tp``."""
    vpp: int = knob(
        1,
        "vpp{}",
        (LAYOUT,),
        detail_of=("pp",),
        search=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 20),
    )
    """Chunks of layers that a stage has (virtual pipeline stages)."""
    micro_batch: int = knob(
        1,
        "mb{}",
        (LAYER_BLOCKS, BOUNDARY, MICRO_BATCHES),
        always=True,
        search=(1, 2, 4, 8, 16),
        flags={
            MEGATRON_LM: Flag("--micro-batch-size"),
            MEGATRON_BRIDGE: Flag("train.micro_batch_size"),
            DEEPSPEED: Flag("train_micro_batch_size_per_gpu"),
        },
    )
    """Sequences that a pass takes at once."""
    recompute: str = knob(
        "none",
        "recompute={}",
        (LAYER_BLOCKS,),
        choices=RECOMPUTE_MODES,
        topic="recompute",
        one_thing=True,
    )
    """``none`` keeps activations, ``selective`` repeats parts of layers in the backward pass,
    ``full`` whole layers."""
    recompute_layers: int | None = knob(
        None,
        "({})",
        (PASSES,),
        left_out="all",
        topic="recompute",
        one_thing=True,
        detail_of=("recompute",),
        canonical=Canonical(
            "it is every layer when left out",
            _SPLIT,
            lambda job: job.recipe.recompute_layers == job.largest_chunk,
        ),
        search=(None, 1),
    )
    """How many layers of each pipeline chunk ``full`` repeats (Megatron's ``block`` method); None
    means every layer."""
    recompute_taper: int = knob(
        0,
        "taper{}",
        (LAYOUT,),
        least=0,
        topic="recompute",
        one_thing=True,
        detail_of=("pp", "recompute"),
        search=(0, 1, 2),
    )
    """Each stage recomputes so many layers per chunk fewer than the one before, as it has fewer
    micro-batches in flight."""
    recompute_modules: str | None = knob(
        None,
        "({})",
        (LAYER_BLOCKS,),
        left_out=DEFAULT_RECOMPUTE_MODULES,
        topic="recompute",
        one_thing=True,
        detail_of=("recompute",),
        canonical=Canonical(
            "they are a set, and the attention core when left out",
            (),
            lambda job: job.recipe.recompute_modules is not None,
            _modules_in_order,
        ),
        search=(None, "mlp", "layernorm", "core_attn+mlp"),
    )
    """What ``selective`` recomputes, joined by ``+``; None means the attention core."""
    sp: bool = knob(
        False,
        "sp",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        topic="sequence",
        detail_of=("tp",),
        flags={
            MEGATRON_LM: Flag("--sequence-parallel"),
            MEGATRON_BRIDGE: Flag("model.sequence_parallel"),
        },
    )
    """Norms and dropout are sharded along the sequence over the tensor-parallel GPUs."""
    zero_stage: int = knob(
        1,
        "zero{}",
        (STEP_END,),
        choices=(0, 1, 2, 3),
        always=True,
        topic="sharding",
        canonical=Canonical(
            _UNSHARED,
            _REPLICAS,
            lambda job: job.recipe.zero_stage < 3 and not job.is_replicated,
        ),
        flags={
            DEEPSPEED: Flag("zero_optimization.stage"),
        },
    )
    """What data parallelism shards: 1 is Megatron's distributed optimizer, 2 shards gradients too,
    3 is FSDP."""
    dp_shard: int | None = knob(
        None,
        "shard{}",
        (STEP_END,),
        left_out="all",
        topic="sharding",
        detail_of=("zero_stage",),
        canonical=Canonical(
            "it is every replica when left out",
            (*_REPLICAS, "zero_stage"),
            lambda job: job.recipe.dp_shard == job.dp,
        ),
        search=(None, 8, 16, 32, 64, 128),
    )
    """Data-parallel replicas that shards are spread over (with the context-parallel ranks); groups
    of so many hold the same, and sum what they reduced (HSDP). None means all."""
    overlap_grad_reduce: bool = knob(
        False,
        "overlap=grad",
        (STEP_END,),
        topic="sharding",
        canonical=Canonical(
            "what is sharded travels beside the backward pass; " + _UNSHARED,
            (*_REPLICAS, "zero_stage"),
            lambda job: job.recipe.zero_stage >= 2 or not job.is_replicated,
        ),
    )
    """Gradients are reduced beside the backward pass, as they always are where they are
    sharded."""
    overlap_param_gather: bool = knob(
        False,
        "overlap=param",
        (STEP_END,),
        topic="sharding",
        detail_of=("zero_stage", "overlap_grad_reduce"),
        canonical=Canonical(
            "what is sharded is gathered beside the passes; " + _UNSHARED,
            (*_REPLICAS, "zero_stage"),
            lambda job: job.recipe.zero_stage == 3 or not job.is_replicated,
        ),
    )
    """Updated parameters are gathered beside the next forward pass, as they always are where they
    are sharded."""
    tp_comm_overlap: bool = knob(
        False,
        "overlap=tp",
        (LAYER_BLOCKS,),
        topic="sequence",
        detail_of=("tp", "sp"),
        flags={
            MEGATRON_LM: Flag("--tp-comm-overlap"),
            MEGATRON_BRIDGE: Flag("comm_overlap.tp_comm_overlap"),
            TORCHTITAN: Flag("--compile.enable-async-tensor-parallel"),
        },
    )
    """Tensor-parallel communication is cut up and runs beside its GEMMs."""
    overlap_moe_expert_parallel_comm: bool = knob(
        False,
        "overlap=ep",
        (LAYER_BLOCKS,),
        topic="experts",
        detail_of=("ep",),
        flags={
            MEGATRON_LM: Flag("--overlap-moe-expert-parallel-comm"),
            MEGATRON_BRIDGE: Flag("comm_overlap.overlap_moe_expert_parallel_comm"),
        },
    )
    """One micro-batch's exchange of tokens runs beside another's kernels."""
    schedule: str = knob(
        "1f1b",
        "{}",
        (PASSES,),
        choices=("1f1b", "gpipe"),
        detail_of=("pp",),
        canonical=Canonical(
            "one stage or one micro-batch has one order",
            ("tp", "pp", "cp", "micro_batch"),
            lambda job: job.recipe.pp == 1 or job.num_micro_batches == 1,
        ),
        flags={
            TORCHTITAN: Flag(
                "--parallelism.pipeline-parallel-schedule", {"1f1b": "1F1B", "gpipe": "GPipe"}
            ),
        },
    )
    """The order of a pipeline's passes: each backward pass as early as it can run (``1f1b``), or
    all forward passes first (``gpipe``)."""
    precision: str | None = knob(
        None,
        "{}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        choices=PRECISIONS,
        left_out="training's",
        canonical=Canonical(
            "it is the training's when left out",
            (),
            lambda job: job.recipe.precision == job.training.precision,
        ),
        search=("bf16", "fp8"),
    )
    """Of linear layers; None means the training's."""
    first_stage_layers: int | None = knob(
        None,
        "first_stage_layers={}",
        (LAYOUT,),
        left_out="even",
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        flags={
            MEGATRON_LM: Flag("--decoder-first-pipeline-num-layers"),
            MEGATRON_BRIDGE: Flag("model.num_layers_in_first_pipeline_stage"),
        },
    )
    """Layers of the first stage, where the split is uneven."""
    last_stage_layers: int | None = knob(
        None,
        "last_stage_layers={}",
        (LAYOUT,),
        left_out="even",
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        flags={
            MEGATRON_LM: Flag("--decoder-last-pipeline-num-layers"),
            MEGATRON_BRIDGE: Flag("model.num_layers_in_last_pipeline_stage"),
        },
    )
    """Layers of the last stage, where the split is uneven."""
    embedding_as_layer: bool = knob(
        False,
        "as_layer=embedding",
        (LAYOUT,),
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        flags={
            MEGATRON_LM: Flag("--account-for-embedding-in-pipeline-split"),
            MEGATRON_BRIDGE: Flag("model.account_for_embedding_in_pipeline_split"),
        },
    )
    """The embedding takes the place of a layer in the split (Megatron's
    ``account-for-embedding-in-pipeline-split``)."""
    loss_as_layer: bool = knob(
        False,
        "as_layer=loss",
        (LAYOUT,),
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        flags={
            MEGATRON_LM: Flag("--account-for-loss-in-pipeline-split"),
            MEGATRON_BRIDGE: Flag("model.account_for_loss_in_pipeline_split"),
        },
    )
    """The output layer and the loss take the place of a layer in the split (Megatron's
    ``account-for-loss-in-pipeline-split``)."""
    pipeline_layout: str | None = knob(
        None,
        "layout={}",
        (LAYOUT,),
        left_out="counted",
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        search=(None, "balanced"),
    )
    """``balanced`` deals out layers that do not divide, one more to the earliest chunks; else what
    each chunk holds, as Megatron's ``pipeline-model-parallel-layout``: ``Et*3|(t*4|)*14tL``."""
    nccl_algo: str | None = knob(
        None,
        "nccl={}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        choices=NCCL_ALGOS,
        left_out="NCCL's",
        topic="nccl",
        search=(None, "ring", "tree"),
        flags={
            ENVIRONMENT: Flag(
                "NCCL_ALGO",
                {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvls_tree": "NVLSTree"},
            ),
        },
    )
    """NCCL's algorithm; None means the cluster's."""
    nccl_max_channels: int | None = knob(
        None,
        "channels<={}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        left_out="NCCL's",
        topic="nccl",
        search=(None, 16, 8, 4),
        flags={
            ENVIRONMENT: Flag("NCCL_MAX_NCHANNELS"),
        },
    )
    """NCCL's most channels; None means the cluster's."""
    use_tp_pp_dp_mapping: bool = knob(
        False,
        "tp-pp-dp",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        detail_of=("pp",),
        canonical=Canonical(
            "without stages there is one order", ("pp",), lambda job: job.recipe.pp == 1
        ),
        flags={
            MEGATRON_LM: Flag("--use-tp-pp-dp-mapping"),
            MEGATRON_BRIDGE: Flag("dist.use_tp_pp_dp_mapping"),
        },
    )
    """The stages of a pipeline lie next to each other and its replicas apart, instead of the other
    way round."""
    grad_dtype: str | None = knob(
        None,
        "grads={}",
        (LAYER_BLOCKS, STEP_END),
        choices=("bf16", "fp32"),
        left_out="framework's",
        topic="numerics",
        canonical=Canonical(
            "it is the framework's when left out, and fp32 in fp32 training",
            ("framework", "precision"),
            lambda job: (
                job.precision in ("fp32", "tf32")
                or (job.recipe.grad_dtype == "fp32") == _unswitched(job).reduces_fp32
            ),
        ),
        search=(None, "bf16"),
        numerics={"bf16": "16bit"},
        flags={
            TORCHTITAN: Flag(
                "--training.mixed-precision-reduce", {"fp32": "float32", "bf16": "bfloat16"}
            ),
        },
    )
    """The type in which gradients are kept and reduced; None means the framework's own choice."""
    optimizer_states: str | None = knob(
        None,
        "states={}",
        (STEP_END,),
        choices=("remainders", "bf16"),
        left_out="training's",
        topic="numerics",
        search=(None, "remainders", "bf16"),
        numerics={"bf16": "16bit"},
    )
    """What a precision-aware optimizer keeps: of the fp32 master weights only what the 16-bit
    weights lack, which loses nothing (``remainders``), and its moments in 16 bits besides
    (``bf16``); None: what the training and the framework say."""
    moe_dispatcher: str | None = knob(
        None,
        "{}",
        (LAYER_BLOCKS,),
        choices=DISPATCHERS,
        left_out="model's",
        topic="experts",
        detail_of=("ep",),
        canonical=Canonical(
            "it is the model's when left out, if that has experts",
            (),
            lambda job: (
                job.model.moe is None or job.recipe.moe_dispatcher == job.model.moe.dispatcher
            ),
        ),
        search=(None, "deepep"),
    )
    """How tokens travel to experts; None means as the model says."""
    cuda_graphs: bool | None = knob(
        None,
        "graphs={}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        left_out="framework's",
        canonical=Canonical(
            "it is the framework's when left out",
            ("framework",),
            lambda job: job.recipe.cuda_graphs == _unswitched(job).cuda_graphs,
        ),
        search=(None, True),
    )
    """Passes are replayed as CUDA graphs, so that the host never lags; None means the framework's
    own choice."""
    framework: str | None = knob(
        None,
        "{}",
        (LAYER_BLOCKS, PASSES, LAYOUT, BOUNDARY, STEP_END, MICRO_BATCHES),
        left_out="question's",
        canonical=Canonical(
            "what is left out is the question's, which is named where there are others",
            (),
            lambda job: job.recipe.framework in (None, declared_framework(job.framework).name),
            lambda job: job.framework.name if job.framework.alternatives else None,
        ),
    )
    """The software that it runs under, of those that the question offers; None means the
    question's own."""


KNOBS: Mapping[str, Knob] = knobs_of(Recipe)
"""Every knob by name, in the order of the fields."""
RECIPE_DEFAULTS: Mapping[str, Any] = {name: knob.default for name, knob in KNOBS.items()}


def details_of(name: str) -> tuple[str, ...]:
    """Names of the knobs that mean nothing without some value of knob ``name``."""
    return tuple(detail for detail, knob in KNOBS.items() if name in knob.detail_of)


def knobs_entering(*what: str) -> tuple[str, ...]:
    """Names of the knobs that enter any of these (``question.knob``)."""
    return tuple(name for name, knob in KNOBS.items() if set(what) & set(knob.enters))
