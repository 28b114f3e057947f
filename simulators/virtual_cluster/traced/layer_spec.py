"""What of a model is traced once each: a layer under one recomputation, the embedding, the head.

A layer's spec holds everything its trace depends on and nothing else, so that jobs share what they
can: no layer count, no pipeline, no replicas, no cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knobs.recomputation import DEFAULT_RECOMPUTE_MODULES
from trainscout.simulators.predictor.question.layer_pattern import format_layers
from trainscout.simulators.predictor.question.layers import (
    MOE,
    NONE,
    Layer,
    Mamba2,
    Mixer,
    plain_layer,
)
from trainscout.simulators.predictor.question.layers import WHOLE as WHOLE_ATTENTION
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.training import QUANTISED
from trainscout.simulators.predictor.workload.model.layer import layer_name

EMBEDDING, LAYER, MOE_LAYER, HEAD = "embedding", "layer", "moe_layer", "head"
# Not one layer but a pipeline stage's rank, which is traced whole.
WHOLE = "whole"
# How Megatron-Core builds its layers: of Transformer Engine's modules, or of its own with Apex.
TRANSFORMER_ENGINE, LOCAL = "transformer_engine", "local"

# What a framework may declare, where Megatron-Core is only one way.
_MEGATRON_CORE: dict[str, tuple[object, ...]] = {
    "fusion": ("fused",),
    "fused_norm": (True,),
    "norm_kernel": (False,),
    "fused_softmax": (True,),
    "masked_attention": (False,),
    "attention_block": (0,),
    "rope": ("halves",),
    "repeats_kv": (False,),
    "separate_projections": (False,),
    "joined_halves": (True,),
    "inputs_apart": (False,),
    "whole_embedding": (False,),
    "batch_first": (False,),
    "gathers_ring": (False,),
    "keeps_gathered": (False,),
    "pads_vocabulary": (True,),
    "writes_gelu": (False,),
    "recompute_stops_early": (False,),
    "saves_each_product": (False,),
    "saves_exchanges": (False,),
    "autocast": (False,),
    "gathers_logits": (False,),
    "logged_losses": (0,),
    "quantises_each_pass": (False,),
    "fuses_casts": (False,),
    "loops_experts": (False,),
    "pads_experts": (False,),
    "keeps_router_graph": (False,),
    "delta_rule": ("fused",),
    "masked_dispatch": ("",),
    "written_dispatch": ("", "atomic"),
    "megatron_fsdp": (False,),
    "gathers_for_experts": (False,),
    "repeats_deepep": (False,),
    "overlap_tp_gradients": (True,),
    # Before 2023 a copy of the logits more; the installed version decides.
    "cross_entropy": ("fp32", "copies", "in_place"),
}
_MODULES = frozenset(
    ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
)
_OF_EXPERTS = frozenset(("moe", "moe_act", "shared_experts"))
_PRECISIONS = ("bf16", "fp16", "fp8", "fp8_current", "mxfp8")


@dataclass(frozen=True)
class LayerSpec:
    """One layer, or the embedding or head, and how it is sharded.

    ``model`` is stripped of what the layer does not read. ``sequence_length`` is the whole
    sequence's, ``micro_batch`` the number of sequences. ``modules`` is empty unless ``recompute``
    is ``selective``. The GPU's generation decides which kernels Transformer Engine takes.
    """

    kind: str
    model: Model
    sequence_length: int
    micro_batch: int
    tp: int
    cp: int
    cp_comm_type: str
    ep: int
    etp: int
    sp: bool
    precision: str
    recompute: str
    modules: str
    implementation: str
    stores_fp8_activations: bool
    fused_wgrad: bool
    accumulate_grads_fp32: bool
    fused_router: bool
    fused_rope: bool
    fused_permute: bool
    fused_loss: bool
    architecture: str
    compute_capability: float

    @property
    def world_size(self) -> int:
        """The fewest ranks that hold every group of the layer."""
        return math.lcm(self.tp * self.cp, self.etp * self.ep)


@dataclass(frozen=True)
class RankOfJob:
    """A whole rank to trace into ``file``: steps of so many micro-batches each."""

    job: Job
    micro_batches: tuple[int, ...]
    rank: int
    file: Path


def check_traceable(job: Job) -> None:
    """Refuse a valid job that is not Megatron-Core's, or that tracing cannot distinguish."""
    recipe, framework, moe = job.recipe, job.framework, job.model.moe
    for name, allowed in _MEGATRON_CORE.items():
        value = getattr(framework, name)
        if value not in allowed:
            problem = "is not how Megatron-Core works, whose layers are traced"
            raise InputError(f"framework.{name}", value, problem, map(str, allowed))
    if framework.fused_experts and moe is not None and job.precision == "mxfp8":
        problem = "is not traced: experts one after another are"
        raise InputError("framework.fused_experts", True, problem, "false")
    if job.precision not in _PRECISIONS:
        problem = "is not traced"
        raise InputError("training.precision", job.precision, problem, _PRECISIONS)
    for name in ("fp8_dot_product_attention", "fp8_output_proj"):
        if getattr(recipe, name) and job.precision in QUANTISED:
            raise InputError(f"recipe.{name}", True, "is not traced", "false")
    for group, precision in job.module_precision:
        problem = "is not traced: Megatron-Core's linear layers share a precision"
        raise InputError(f"training.module_precision.{group}", precision, problem, "null")
    training = job.training
    for name in ("lora", "frozen", "packed_lengths", "dpo", "distillation"):
        if getattr(training, name):
            problem = "is not traced: whole training of whole sequences is"
            raise InputError(f"training.{name}", getattr(training, name), problem)
    if recipe.zero_stage > 1:
        problem = "is not traced: Megatron-Core's distributed optimizer is"
        raise InputError("recipe.zero_stage", recipe.zero_stage, problem, "0, 1")
    for name in ("offloaded_layers", "offload_modules"):
        if value := getattr(recipe, name):
            raise InputError(f"recipe.{name}", value, "is not traced: activations stay on the GPU")
    if recipe.overlap_moe_expert_parallel_comm:
        field = "recipe.overlap_moe_expert_parallel_comm"
        raise InputError(field, True, "is not traced: one layer at a time is", "false")
    for module in _modules(job).split("+"):
        if module and module not in _MODULES:
            problem = "is no module that Megatron-Core recomputes"
            raise InputError("recipe.recompute_modules", module, problem, _MODULES)
        if module in ("mlp", "moe", "shared_experts") and job.model.linear_bias:
            # Its checkpoint hands a bias out, which autograd takes for its own result.
            problem = "does not end in Megatron-Core where linear layers have biases"
            raise InputError("recipe.recompute_modules", module, problem)
    _check_model(job)
    if not job.model.is_plain:
        _check_halves(job)
    if moe is not None and (moe.load_imbalance != 1 or moe.routed):
        field = "model.moe.load_imbalance"
        raise InputError(field, moe.load_imbalance, "experts are traced evenly loaded", "1")
    if job.dispatcher == "deepep" and job.etp > 1:
        problem = "is not traced under DeepEP, which then gathers over etp x ep"
        raise InputError("recipe.etp", job.etp, problem, "1")
    if moe is not None and job.model.linear_bias and job.etp > 1:
        problem = "Megatron-Core refuses expert biases where experts are split"
        raise InputError("recipe.etp", job.etp, problem, "1")


def _check_model(job: Job) -> None:
    """Refuse what of a model's layers Megatron-Core does otherwise, or is not told."""
    model, latent = job.model, job.model.mla is not None
    biased = model.linear_bias or model.qkv_bias
    delayed = job.precision == "fp8"
    beside = "Megatron-Core's QKV projection has a bias where others have"
    in_16_bits = "Megatron-Core refuses it with delayed scaling"
    for name, differs, reason, allowed in (
        ("num_mtp_layers", model.num_mtp_layers, "layers are, and one head", "0"),
        ("clamped_mlp", model.clamped_mlp, "SwiGLU is as it comes", "false"),
        ("scaled_rope", model.scaled_rope and model.position == "rope", "no YaRN is", "false"),
        ("qkv_bias", model.linear_bias and not model.qkv_bias, beside, "true"),
        ("qkv_bias", model.qkv_bias and latent, "its latent projections have no biases", "false"),
        ("key_bias", biased and not model.key_bias, "keys have biases where queries do", "true"),
        *(
            (name, delayed and getattr(model, name), in_16_bits, "0")
            for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
        ),
    ):
        if differs:
            problem = f"is not traced: {reason}"
            raise InputError(f"model.{name}", getattr(model, name), problem, allowed)


def _check_halves(job: Job) -> None:
    """Refuse layers that are not of Megatron-Core's hybrid models (Mamba-2, attention, an MLP or
    experts, one a layer) as those have them."""
    model, recipe = job.model, job.recipe
    halves = all(
        (model.mixer(layer) is None) != (layer.mlp == NONE) for layer in model.layer_kinds
    )
    mixers = [mixer for mixer in map(model.mixer, model.layer_kinds) if mixer is not None]
    others = [word for word in model.special_layers if not word.startswith("layers ")]
    if others or not halves or not all(map(_has_mixer, mixers)):
        problem = (
            "is not traced: layers of attention, then an MLP or experts, are, and those of hybrid "
            "models, each attention, Mamba-2 (chunks of 128, 4 taps), an MLP or experts"
        )
        raise InputError("model.layers", model.layers, problem)
    if job.attention == "unfused":
        raise InputError("model.layers", model.layers, "is traced with Transformer Engine")
    # ``mamba_layer_specs.py`` names attention's parts itself.
    if model.qk_norm:
        raise InputError("model.qk_norm", True, "is not in Megatron-Core's hybrid models", "false")
    if model.mla is not None:
        raise InputError("model.mla", "...", "is not in Megatron-Core's hybrid models", "null")
    if recipe.recompute == "full":
        problem = "is not what hybrids did in Megatron-Core before pull request 4496 (May 2026)"
        raise InputError("recipe.recompute", "full", problem, "none, selective")


def _has_mixer(mixer: Mixer) -> bool:
    """Whether Megatron-Core's hybrid stack has it."""
    ssm = mixer.mamba2
    if ssm is None:
        return mixer == Mixer(attention=WHOLE_ATTENTION)
    plain = Mamba2(ssm.heads, ssm.head_dim, ssm.state, ssm.groups, chunk=128)
    return mixer == Mixer(mamba2=plain)


def _modules(job: Job) -> str:
    if job.recipe.recompute != "selective":
        return ""
    return "+".join(sorted((job.recipe.recompute_modules or DEFAULT_RECOMPUTE_MODULES).split("+")))


def embedding_layer(job: Job) -> LayerSpec:
    return _end(job, EMBEDDING)


def head_layer(job: Job) -> LayerSpec:
    """Final norm, logits and loss, with an output weight of its own."""
    return _end(job, HEAD)


def transformer_layer(job: Job, layer: Layer, *, recompute: str) -> LayerSpec:
    """One layer under ``recompute``, which may be none where the recipe recomputes others. A half
    of one is its model's only layer."""
    spec, is_moe = _spec(job, layer_name(layer)), layer.mlp == MOE
    moe = spec.model.moe if is_moe else None
    model = spec.model.for_layer(layer)
    model = replace(model, vocab_size=1, sequence_length=spec.sequence_length, moe=moe)
    if layer.bf16 and spec.precision in QUANTISED:
        spec = replace(spec, precision="bf16")
    layer = replace(layer, ffn_hidden_size=None, bf16=False)
    if layer != plain_layer(is_moe):
        kinds = {name: kind for name, kind in job.model.kinds.items() if name == layer.mixer}
        model = replace(model, layers=format_layers([layer]), kinds=kinds)
    if model.moe is not None:
        model = replace(model, moe=replace(model.moe, num_dense_layers=0, layer_period=1))
    modules = _modules(job) if recompute == "selective" else ""
    if not is_moe:
        modules = "+".join(each for each in modules.split("+") if each not in _OF_EXPERTS)
    recompute = "none" if recompute == "selective" and not modules else recompute
    spec = replace(spec, model=model, recompute=recompute, modules=modules)
    return spec if is_moe else replace(spec, ep=1, etp=spec.tp)


def layer_specs_of(job: Job) -> tuple[LayerSpec, ...]:
    """Every layer that the job's workload is put together from, without repeats.

    Raises:
        InputError: for a job that is not traceable.
    """
    check_traceable(job)
    model, recipe = job.model, job.recipe
    counts = [job.recomputed_layers(stage) for stage in range(recipe.pp)]
    some_plain = recipe.recompute == "full" and any(
        count is not None and count < job.largest_chunk for count in counts
    )
    modes = [recipe.recompute, "none"] if some_plain else [recipe.recompute]
    layers = [
        transformer_layer(job, each, recompute=mode)
        for each in model.layer_kinds
        for mode in modes
    ]
    return (embedding_layer(job), *dict.fromkeys(layers), head_layer(job))


def whole_model(job: Job) -> LayerSpec:
    """The whole model, as every rank of the job is configured."""
    recompute = job.recipe.recompute
    return replace(_spec(job, WHOLE), model=job.model, recompute=recompute, modules=_modules(job))


def _end(job: Job, kind: str) -> LayerSpec:
    spec = _spec(job, kind)
    model = replace(spec.model, moe=None, mla=None)
    if model.head_dim is None and model.hidden_size % model.num_heads:
        model = replace(model, head_dim=1)
    return replace(spec, model=model, ep=1, etp=spec.tp)


def _spec(job: Job, kind: str) -> LayerSpec:
    recipe, framework = job.recipe, job.framework
    # The vocabulary's padding depends on tp, which is in the spec; layers and names do not matter.
    model = replace(job.model, name="", source="", num_layers=1, num_mtp_layers=0)
    model = replace(model, layers=None, kinds={})
    model = replace(model, num_layers_at_start_in_bf16=0, num_layers_at_end_in_bf16=0)
    if model.moe is not None and job.dispatcher is not None:
        # DeepEP exchanges nothing where a rank has all experts.
        dispatcher = (
            "alltoall" if job.dispatcher == "deepep" and recipe.ep == 1 else job.dispatcher
        )
        model = replace(model, moe=replace(model.moe, dispatcher=dispatcher))
    return LayerSpec(
        kind=kind,
        model=replace(model, tied_embeddings=False),
        sequence_length=job.sequence_length,
        micro_batch=recipe.micro_batch,
        tp=recipe.tp,
        cp=recipe.cp,
        cp_comm_type=recipe.cp_comm_type if recipe.cp > 1 else "p2p",
        ep=recipe.ep,
        etp=job.etp,
        sp=recipe.sp,
        precision=job.precision,
        recompute="none",
        modules="",
        implementation=LOCAL if job.attention == "unfused" else TRANSFORMER_ENGINE,
        stores_fp8_activations=recipe.activation_func_fp8_input_store,
        fused_wgrad=framework.fused_wgrad,
        accumulate_grads_fp32=framework.accumulate_grads_fp32,
        fused_router=framework.fused_router,
        fused_rope=framework.fused_rope,
        fused_permute=not framework.written_dispatch,
        fused_loss=framework.cross_entropy == "in_place",
        architecture=job.gpu.architecture.name,
        compute_capability=job.gpu.compute_capability,
    )
