"""The one place that says whether a recipe can be launched, and why not.

What a knob can be whatever the job, its declaration says (``question.recipe``). What else must
hold are rules: small functions from a job to a reason, or None when they hold. They run in order,
so a later rule may rely on what an earlier one established (degrees divide the world before the
batch is divided among replicas).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from . import rules
from .errors import InputError
from .framework import declared_framework
from .job import Job
from .knob import LAYOUT
from .knobs.recomputation import RECOMPUTE_MODULES
from .layers import Mixer
from .recipe import KNOBS, knobs_entering
from .rules import Broken, host_optimizer, offloading
from .training import PRECISION_BITS


@dataclass(frozen=True)
class Violation:
    """One broken rule: its name, the recipe field to change, and the reason in words."""

    rule: str
    field: str
    reason: str


@dataclass(frozen=True)
class Rule:
    """What must hold of a job."""

    reads: tuple[str, ...]
    """The fields of the recipe that ``broken`` may read."""
    broken: Callable[[Job], Broken]
    """The field to change and the reason, or None when the rule holds."""


def _value(name: str, job: Job) -> Broken:
    value = getattr(job.recipe, name)
    reason = KNOBS[name].why_not(value)
    return None if reason is None else (name, f"{name}={value} {reason}")


def _framework(job: Job) -> Broken:
    name, declared = job.recipe.framework, declared_framework(job.framework)
    offered = [each.name for each in declared.offered]
    if name is not None and name not in offered:
        return "framework", f"framework={name} is not among the question's: {', '.join(offered)}"
    needed = {
        "experts": job.model.moe is not None,
        "latent_attention": job.model.mla is not None,
        "multi_token_prediction": job.model.num_mtp_layers > 0,
        "fp8": PRECISION_BITS[job.precision] <= 8,
        "quantised_weights": job.frozen_weights != "16bit",
    }
    for what in job.framework.lacks:
        if needed[what]:
            return "framework", f"{job.framework.name} has no {what.replace('_', ' ')}"
    return None


def _degrees_divide_world(job: Job) -> Broken:
    recipe = job.recipe
    product = recipe.tp * recipe.pp * recipe.cp
    if job.world_size % product:
        partial = {"tp": recipe.tp, "pp": recipe.tp * recipe.pp, "cp": product}
        first = next(name for name, degree in partial.items() if job.world_size % degree)
        return first, (
            f"tp x pp x cp = {recipe.tp} x {recipe.pp} x {recipe.cp} = {product} does not divide "
            f"the {job.world_size} GPUs of {job.cluster.name}"
        )
    return None


def _tensor_parallel_in_domain(job: Job) -> Broken:
    # A launcher can express TP across nodes, but a group that straddles a node boundary
    # unevenly has no regular ring; whole multiples of a node are left to the price model.
    tp, domain = job.recipe.tp, job.cluster.domain
    if domain % tp if tp <= domain else tp % domain:
        return (
            "tp",
            f"tp={tp} does not align with the {domain} GPUs joined by {job.gpu.architecture.link}",
        )
    return None


def _tensor_parallel_divides_model(job: Job) -> Broken:
    model, tp = job.model, job.recipe.tp
    for heads, groups in model.head_counts:
        if heads % tp:
            return "tp", f"tp={tp} does not divide the {heads} attention heads"
        if model.mla is None and groups % tp and tp % groups:
            return "tp", f"tp={tp} neither divides nor is a multiple of {groups} KV groups"
    if model.ffn_hidden_size % tp:
        return "tp", f"tp={tp} does not divide the MLP width {model.ffn_hidden_size}"
    if model.hidden_size % tp:
        return "tp", f"tp={tp} does not divide the hidden size {model.hidden_size}"
    if model.moe and model.moe.shared_ffn_hidden_size % tp:
        return "tp", f"tp={tp} does not divide the shared expert width"
    for tower in model.towers:
        if tower.kv_heads % tp or tower.ffn_hidden_size % tp:
            return "tp", f"tp={tp} does not divide heads or MLP of the {tower.name} tower"
    for name, mixer in model.kinds.items():
        if tp > 1 and (mixer.mamba1 or mixer.short_conv or mixer.compressed):
            return "tp", f"no framework cuts mixers of kind {name}"
        for words, count in _cut_by_heads(mixer).items():
            if count % tp:
                return "tp", f"tp={tp} does not divide the {count} {words} of kind {name}"
    return None


def _cut_by_heads(mixer: Mixer) -> dict[str, int]:
    """What tensor parallelism divides of a mixer besides attention's heads."""
    found: dict[str, int] = {}
    if mixer.mamba2 is not None:
        found |= {"state-space heads": mixer.mamba2.heads, "groups": mixer.mamba2.groups}
    if mixer.delta is not None:
        found |= {"key heads": mixer.delta.k_heads}
    return found


def _sequence_parallel(job: Job) -> Broken:
    recipe = job.recipe
    if recipe.sp and recipe.tp == 1:
        return "sp", "sequence parallelism shards over the tensor-parallel group: it needs tp > 1"
    if recipe.sp and job.sequence_length % (recipe.tp * recipe.cp):
        return "sp", f"tp x cp does not divide the sequence of {job.sequence_length} tokens"
    if recipe.tp_comm_overlap and not recipe.sp:
        return "tp_comm_overlap", "overlapping TP communication needs sequence parallelism"
    # Megatron-LM's MoE layer refuses to train otherwise.
    if job.model.moe and not recipe.sp and max(recipe.tp, job.etp) > 1:
        return "sp", "MoE with tp > 1 or etp > 1 needs sequence parallelism"
    return None


def _context_parallel(job: Job) -> Broken:
    cp = job.recipe.cp
    # Causal load balancing cuts the sequence into 2 x cp pieces.
    if cp > 1 and job.sequence_length % (2 * cp):
        return "cp", f"2 x cp={2 * cp} does not divide the {job.sequence_length} tokens"
    if cp > 1 and job.attention == "unfused":
        return "cp", f"context parallelism needs flash attention{_too_old_for_it(job)}"
    if cp > 1 and job.recipe.cp_comm_type == "a2a":
        model, tp = job.model, job.recipe.tp
        for queries, groups in model.head_counts:
            heads = queries if model.mla is not None else groups
            if heads % (tp * cp):
                return "cp_comm_type", f"tp x cp = {tp * cp} does not divide the {heads} KV heads"
    for name, mixer in job.model.kinds.items() if cp > 1 else ():
        broken = _mixer_context_parallel(job, name, mixer)
        if broken is not None:
            return broken
    return None


def _mixer_context_parallel(job: Job, name: str, mixer: Mixer) -> Broken:
    recipe, attention, ssm = job.recipe, mixer.attention, mixer.mamba2
    whole = mixer.delta or mixer.mamba1 or mixer.short_conv or mixer.compressed
    # An encoder's output is not cut; a text is whole on every rank.
    looks = mixer.cross and job.model.diffusion is None
    if whole or looks or (attention is not None and attention.index is not None):
        return "cp", f"no framework cuts sequences in front of mixers of kind {name}"
    limited = attention is not None and (attention.window or attention.chunk)
    if limited and recipe.cp_comm_type != "a2a":
        # Transformer Engine refuses sliding windows around the ring.
        return "cp_comm_type", f"windows and chunks of kind {name} need a2a"
    if ssm is not None and ssm.heads % (recipe.tp * recipe.cp):
        degrees = f"tp x cp = {recipe.tp * recipe.cp}"
        return "cp", f"{degrees} does not divide the {ssm.heads} heads of kind {name}"
    return None


def _experts(job: Job) -> Broken:
    recipe, moe = job.recipe, job.model.moe
    if moe is None:
        if recipe.ep > 1:
            return "ep", f"{job.model.name} has no experts to shard: ep must be 1"
        if recipe.etp is not None and recipe.etp != recipe.tp:
            return "etp", f"{job.model.name} has no experts: etp follows tp"
        if recipe.overlap_moe_expert_parallel_comm:
            return "overlap_moe_expert_parallel_comm", f"{job.model.name} has no experts"
        return None
    if moe.num_experts % recipe.ep:
        return "ep", f"ep={recipe.ep} does not divide the {moe.num_experts} experts"
    if moe.ffn_hidden_size % job.etp:
        return "etp", f"etp={job.etp} does not divide the expert width {moe.ffn_hidden_size}"
    if job.world_size % (job.etp * recipe.ep * recipe.pp):
        return "ep", (
            f"etp x ep x pp = {job.etp} x {recipe.ep} x {recipe.pp} does not divide the "
            f"{job.world_size} GPUs"
        )
    if (
        recipe.use_tp_pp_dp_mapping
        and recipe.pp > 1
        and job.etp * recipe.ep != recipe.tp * recipe.cp
    ):
        # Megatron-Core wants the same pipelines for dense and expert layers.
        return "use_tp_pp_dp_mapping", (
            f"stages of etp x ep = {job.etp} x {recipe.ep} and of tp x cp = {recipe.tp} x "
            f"{recipe.cp} ranks do not lie next to each other alike"
        )
    if recipe.overlap_moe_expert_parallel_comm:
        if not job.model.is_plain:
            field = "overlap_moe_expert_parallel_comm"
            return field, "layers are paired where all are attention and an MLP or experts"
        # Megatron-LM pairs the forward pass of one micro-batch with the backward of another.
        field = "overlap_moe_expert_parallel_comm"
        if recipe.ep == 1:
            return field, "without expert parallelism there is no exchange to overlap"
        if recipe.recompute == "full":
            return field, "a pass that recomputes whole layers cannot be paired with another"
        if recipe.pp > 1 and recipe.vpp == 1:
            return field, "with pp > 1 the passes can only be paired under vpp > 1"
    return None


def _looking_across(job: Job) -> Broken:
    recipe, diffusion = job.recipe, job.model.diffusion
    tokens, _ = job.model.looked_at
    if not tokens:
        return None
    if recipe.pp > 1:
        what = "an encoder's output" if diffusion is None else "texts and conditions"
        return "pp", f"{what}, which layers look at, is not sent through pipelines"
    if diffusion is not None and tokens % recipe.cp:
        return "cp", f"cp={recipe.cp} does not divide the {tokens} tokens of texts"
    if "operations" in (recipe.recompute_modules or "").split("+"):
        return "recompute_modules", "operations is not modelled of layers that look across"
    if job.attention == "unfused" and diffusion is not None:
        return "framework", f"latents are many: attention is fused{_too_old_for_it(job)}"
    return None


def _pooling(job: Job) -> Broken:
    pooled, recipe = job.model.pooled, job.recipe
    if pooled is None:
        return None
    if recipe.cp > 1 and not pooled.every_token:
        return "cp", "one token of a sequence is taken, which context parallelism cuts"
    if recipe.pp > 1 and pooled.contrastive is not None:
        return "pp", "what images are compared with is not sent through pipelines"
    held, whole = job.dp * recipe.micro_batch, job.training.global_batch_size
    if pooled.contrastive is not None and held < whole:
        return (
            "micro_batch",
            f"pairs of a whole batch are compared in one pass: dp x micro_batch {held} < {whole}",
        )
    return None


def _beside_the_hidden_state(job: Job) -> Broken:
    """What layers are given beside it: no pipeline sends it, and no framework shards its table."""
    recipe, model = job.recipe, job.model
    if recipe.tp > 1 and (model.inner_norms or model.per_layer_input is not None):
        return "tp", "no framework cuts inputs of each layer's own, or norms inside its halves"
    mixers = [mixer.attention for mixer in model.kinds.values() if mixer.attention is not None]
    reused = any(attention.reuses_kv for attention in mixers)
    if recipe.pp > 1 and (reused or model.per_layer_input is not None):
        what = "keys and values of other layers" if reused else "inputs of each layer's own"
        return "pp", f"{what} are not sent through pipelines"
    return None


def _batch_divides(job: Job) -> Broken:
    batch, per_round = job.training.global_batch_size, job.dp * job.recipe.micro_batch
    if batch % per_round:
        return "micro_batch", (
            f"dp x micro_batch = {job.dp} x {job.recipe.micro_batch} does not divide the global "
            f"batch of {batch}"
        )
    return None


def _too_old_for_it(job: Job) -> str:
    declared = job.framework.attention
    return "" if declared == job.attention else f"; {job.gpu.name} has no {declared} kernels"


def _recompute(job: Job) -> Broken:
    recipe = job.recipe
    if recipe.recompute_modules is not None:
        if recipe.recompute != "selective":
            return "recompute_modules", "needs recompute=selective"
        modules = recipe.recompute_modules.split("+")
        for module in modules:
            if module not in RECOMPUTE_MODULES:
                known = ", ".join(RECOMPUTE_MODULES)
                return "recompute_modules", f"{module} is not one of {known}"
        if "operations" in modules and len(modules) > 1:
            return "recompute_modules", "operations stands alone"
        if "operations" in modules and job.attention == "unfused":
            reason = f"operations keeps what flash attention made{_too_old_for_it(job)}"
            return "recompute_modules", reason
    if recipe.recompute_taper and (recipe.recompute != "full" or recipe.pp == 1):
        return "recompute_taper", "recompute_taper needs recompute=full and pipeline stages"
    if recipe.recompute_layers is None:
        return None
    if recipe.recompute != "full":
        return "recompute_layers", "recompute_layers only means something with recompute=full"
    chunk = job.largest_chunk
    if recipe.recompute_layers > chunk:
        return "recompute_layers", (
            f"recompute_layers={recipe.recompute_layers} exceeds the {chunk} layers of a chunk"
        )
    return None


def _adapters(job: Job) -> Broken:
    lora, recipe = job.training.lora, job.recipe
    if lora is None:
        return None
    if lora.rank % recipe.tp:
        return "tp", f"tp={recipe.tp} does not divide the rank {lora.rank} of training.lora"
    if "operations" in (recipe.recompute_modules or "").split("+"):
        return "recompute_modules", "operations is not modelled with training.lora"
    if lora.packs_weights and job.precision not in ("bf16", "fp16"):
        kept = f"weights in {lora.frozen_weights} beside training.lora are multiplied in 16 bits"
        return "precision", f"{kept}, not in {job.precision}"
    return None


def _teacher(job: Job) -> Broken:
    if job.training.distillation is None or job.reference is None:
        return None
    taught, recipe = job.reference, job.recipe
    for rule in (_tensor_parallel_divides_model, _sequence_parallel, _context_parallel, _experts):
        broken = rule(taught)
        if broken is not None:
            return broken[0], f"teacher {taught.model.name}: {broken[1]}"
    if recipe.pp > 1 and len(taught.model.layer_kinds) > 1:
        return "pp", f"teacher {taught.model.name} has several kinds of layers: they are not cut"
    if taught.model.num_layers % (recipe.pp * recipe.vpp):
        chunks = f"pp x vpp = {recipe.pp} x {recipe.vpp}"
        layers = f"the {taught.model.num_layers} layers of teacher {taught.model.name}"
        return "pp", f"{chunks} does not divide {layers}"
    return None


def _sharding(job: Job) -> Broken:
    recipe = job.recipe
    if recipe.zero_stage >= 2 and recipe.pp > 1:
        return "zero_stage", (
            f"zero_stage={recipe.zero_stage} re-gathers or re-reduces per micro-batch and is "
            "offered by no framework together with pp > 1"
        )
    if recipe.overlap_param_gather and recipe.zero_stage == 0:
        return "overlap_param_gather", "there is no parameter gather without a sharded optimizer"
    if recipe.overlap_param_gather and recipe.zero_stage == 1 and not recipe.overlap_grad_reduce:
        return "overlap_param_gather", "Megatron overlaps the gather only with overlap_grad_reduce"
    return None


def _sharding_group(job: Job) -> Broken:
    recipe, field = job.recipe, "dp_shard"
    if recipe.dp_shard is None:
        return None
    if recipe.zero_stage == 0:
        return field, "zero_stage=0 shards nothing"
    if job.dp % recipe.dp_shard:
        return field, f"dp_shard={recipe.dp_shard} does not divide the {job.dp} replicas"
    if job.model.moe is not None and job.expert_dp % job.shard_copies:
        return field, (
            f"{job.shard_copies} groups of {recipe.dp_shard} replicas do not divide the "
            f"{job.expert_dp} replicas of an expert"
        )
    if recipe.use_tp_pp_dp_mapping and recipe.pp > 1 and job.shard_copies > 1:
        return field, "use_tp_pp_dp_mapping shards over all replicas"
    return None


_WORLD = ("tp", "pp", "cp")
_LAYOUT = knobs_entering(LAYOUT)
_EXPERTS = (
    *("tp", "cp", "pp", "vpp", "ep", "etp", "recompute"),
    *("overlap_moe_expert_parallel_comm", "use_tp_pp_dp_mapping"),
)

RULES: dict[str, Rule] = {
    **{
        f"{name}_value": Rule((name,), partial(_value, name))
        for name, knob in KNOBS.items()
        if knob.is_limited
    },
    "framework": Rule(("framework", "precision"), _framework),
    "precision": Rule(("precision",), rules.precision),
    "degrees_divide_world": Rule(_WORLD, _degrees_divide_world),
    "tensor_parallel_in_domain": Rule(("tp",), _tensor_parallel_in_domain),
    "tensor_parallel_divides_model": Rule(("tp",), _tensor_parallel_divides_model),
    "schedule": Rule(
        ("framework", "schedule", "pp", "vpp", "first_stage_layers", "last_stage_layers"),
        rules.schedule,
    ),
    "pipeline_splits_layers": Rule(_LAYOUT, rules.splits_layers),
    "virtual_stages": Rule(("pp", "vpp"), rules.virtual_stages),
    "sequence_parallel": Rule(("sp", "tp", "cp", "tp_comm_overlap", "etp"), _sequence_parallel),
    "context_parallel": Rule(("framework", "tp", "cp", "cp_comm_type"), _context_parallel),
    "experts": Rule(_EXPERTS, _experts),
    "looking_across": Rule(("framework", "pp", "cp", "recompute_modules"), _looking_across),
    "pooling": Rule((*_WORLD, "micro_batch"), _pooling),
    "beside_the_hidden_state": Rule(("tp", "pp"), _beside_the_hidden_state),
    "batch_divides": Rule((*_WORLD, "micro_batch"), _batch_divides),
    "interleaving_batch": Rule(
        (*_WORLD, "vpp", "schedule", "micro_batch"), rules.enough_micro_batches
    ),
    "recompute": Rule(
        ("recompute", "recompute_modules", "recompute_layers", *_LAYOUT), _recompute
    ),
    "adapters": Rule(("tp", "recompute_modules", "precision"), _adapters),
    "teacher": Rule((*_EXPERTS, "framework", "cp_comm_type", "sp", "tp_comm_overlap"), _teacher),
    "offloading": Rule(
        ("framework", "offloaded_layers", "pp", "recompute", "cuda_graphs"), offloading
    ),
    "optimizer_states": Rule(
        ("framework", "optimizer_states", "zero_stage", "precision"), rules.optimizer_states
    ),
    "host_optimizer": Rule(
        ("framework", "optimizer_offload", "optimizer_states", "zero_stage", "precision"),
        host_optimizer,
    ),
    "fp8_param_gather": Rule(
        ("fp8_param_gather", "precision", "zero_stage", "optimizer_offload"),
        rules.quantised_parameters,
    ),
    "quantised_products": Rule(
        ("fp8_dot_product_attention", "fp8_output_proj", "precision", "framework"),
        rules.quantised_products,
    ),
    "sharding_group": Rule(
        (*_WORLD, "ep", "etp", "dp_shard", "zero_stage", "use_tp_pp_dp_mapping"), _sharding_group
    ),
    "sharding": Rule(
        ("zero_stage", "pp", "overlap_param_gather", "overlap_grad_reduce"), _sharding
    ),
}


def why_invalid(job: Job) -> Violation | None:
    """The first rule the job's recipe breaks, or None when it can be launched."""
    for name, rule in RULES.items():
        broken = rule.broken(job)
        if broken is not None:
            return Violation(name, *broken)
    return None


def check_job(job: Job) -> None:
    """Refuse a job that cannot be launched.

    Raises:
        InputError: naming the declaration or recipe field and the reason.
    """
    for part in (job.model, job.gpu, job.cluster, job.training):
        part.check()
    job.training.check_for(job.model)
    violation = why_invalid(job)
    if violation is not None:
        field, value = f"recipe.{violation.field}", getattr(job.recipe, violation.field, None)
        if violation.field == "precision" and value is None:
            field, value = "training.precision", job.precision
        if violation.field == "framework" and value is None:
            allowed = "another, as huggingface, or model="
            raise InputError("framework", job.framework.name, violation.reason, allowed)
        batch = job.training.global_batch_size
        if violation.field == "micro_batch" and batch % job.dp:
            allowed = f"a multiple of {job.dp}, or a larger tp, pp or cp for fewer replicas"
            raise InputError("training.global_batch_size", batch, violation.reason, allowed)
        raise InputError(field, value, violation.reason, would_do(job, violation))


def would_do(job: Job, violation: Violation) -> str | None:
    """In words, what the field that a rule complains of could be for the rest to hold; None where
    nothing would do."""
    name = violation.field
    if name not in KNOBS:
        return None
    knob, held = KNOBS[name], []
    numbers = [None] * knob.optional + list(range(knob.least, 17)) + [2**n for n in range(5, 15)]
    if name == "micro_batch":  # of a contrastive loss the batch at once
        numbers = sorted({*numbers, job.training.global_batch_size // job.dp})
    for value in knob.choices or ((False, True) if knob.kind is bool else numbers):
        other = replace(job, recipe=replace(job.recipe, **{name: value}))
        if knob.kind is not str or knob.choices:
            held += [] if why_invalid(other) else ["null" if value is None else str(value)]
    if held:
        more = ", ..." if len(held) > _MOST_SHOWN else ""
        return f"here {', '.join(held[:_MOST_SHOWN])}{more}"
    if knob.kind is str and not knob.choices and knob.own_words:
        return knob.own_words
    return f"{knob.allowed if knob.is_limited else 'true or false'}; here other settings first"


_MOST_SHOWN = 8
