"""Rules of how a model divides over ranks: its heads, widths, experts and sequences, and what its
layers are given besides.

As the rules of ``question.validity``, which says in which order they run: from a job to the field
to change and the reason, or None when they hold.
"""

from __future__ import annotations

from .job import Job
from .layers import Mixer
from .rules import Broken, too_old_for_it


def tensor_parallel_divides_model(job: Job) -> Broken:
    model, tp = job.model, job.recipe.tp
    for heads, groups in model.head_counts:
        if heads % tp:
            return "tp", f"tp={tp} does not divide the {heads} attention heads"
        if model.mla is None and groups % tp and tp % groups:
            return "tp", f"tp={tp} neither divides nor is a multiple of {groups} KV groups"
    for width in (model.ffn_hidden_size, *model.ffn_widths):
        if width % tp:
            return "tp", f"tp={tp} does not divide the MLP width {width}"
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


def sequence_parallel(job: Job) -> Broken:
    recipe = job.recipe
    if recipe.sp and recipe.tp == 1:
        return "sp", "sequence parallelism shards over the tensor-parallel group: it needs tp > 1"
    if recipe.sp and job.sequence_length % (recipe.tp * recipe.cp):
        return "sp", f"tp x cp does not divide the sequence of {job.sequence_length} tokens"
    if recipe.tp_comm_overlap and not recipe.sp:
        return "tp_comm_overlap", "overlapping TP communication needs sequence parallelism"
    # Megatron-LM's MoE layer refuses to train otherwise (moe_layer.py, attn_tp_group).
    if job.model.moe and not recipe.sp and recipe.tp > 1:
        return "sp", "MoE with tp > 1 needs sequence parallelism"
    return None


def context_parallel(job: Job) -> Broken:
    cp = job.recipe.cp
    # Causal load balancing cuts the sequence into 2 x cp pieces.
    if cp > 1 and job.sequence_length % (2 * cp):
        return "cp", f"2 x cp={2 * cp} does not divide the {job.sequence_length} tokens"
    if cp > 1 and job.attention == "unfused":
        return "cp", f"context parallelism needs flash attention{too_old_for_it(job)}"
    if cp > 1 and job.recipe.cp_comm_type == "a2a":
        model, tp = job.model, job.recipe.tp
        for queries, groups in model.head_counts:
            heads = queries if model.mla is not None else groups
            if heads % (tp * cp):
                return "cp_comm_type", f"tp x cp = {tp * cp} does not divide the {heads} KV heads"
    if cp > 1 and job.recipe.cp_comm_type == "all_gather" and job.model.mla is not None:
        # Transformer Engine until 2.9 gathers keys and values that are alike in size.
        return "cp_comm_type", "latent attention needs p2p or a2a"
    for name, mixer in job.model.kinds.items() if cp > 1 else ():
        broken = _mixer_context_parallel(job, name, mixer)
        if broken is not None:
            return broken
    return None


def _mixer_context_parallel(job: Job, name: str, mixer: Mixer) -> Broken:
    recipe, attention, delta = job.recipe, mixer.attention, mixer.delta
    # Megatron-Core's rules decay a head at a time.
    whole = any(
        (mixer.mamba1, mixer.short_conv, mixer.compressed, delta and delta.gate != "scalar")
    )
    # An encoder's output is not cut; a text is whole on every rank.
    looks = mixer.cross and job.model.diffusion is None
    if whole or looks or (attention is not None and attention.index is not None):
        return "cp", f"no framework cuts sequences in front of mixers of kind {name}"
    if delta is not None and not job.framework.cuts_delta_rules:
        return "cp", f"{job.framework.name} cuts no sequences in front of mixers of kind {name}"
    limited = attention is not None and (attention.window or attention.chunk)
    if limited and recipe.cp_comm_type != "a2a":
        # Transformer Engine refuses sliding windows around the ring.
        return "cp_comm_type", f"windows and chunks of kind {name} need a2a"
    exchanged: dict[str, int] = {}
    if mixer.mamba2 is not None:
        exchanged["heads"] = mixer.mamba2.heads
    if delta is not None:
        exchanged["key heads"] = delta.k_heads
    for words, heads in exchanged.items():
        if heads % (recipe.tp * recipe.cp):
            degrees = f"tp x cp = {recipe.tp * recipe.cp}"
            return "cp", f"{degrees} does not divide the {heads} {words} of kind {name}"
    return None


def experts(job: Job) -> Broken:
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
    apart = recipe.use_tp_pp_dp_mapping and recipe.pp > 1
    if apart and job.etp * recipe.ep != recipe.tp * recipe.cp:
        # Megatron-Core wants the same pipelines for dense and expert layers.
        return "use_tp_pp_dp_mapping", (
            f"stages of etp x ep = {job.etp} x {recipe.ep} and of tp x cp = {recipe.tp} x "
            f"{recipe.cp} ranks do not lie next to each other alike"
        )
    if recipe.overlap_moe_expert_parallel_comm:
        # Megatron-LM pairs the forward pass of one micro-batch with the backward of another.
        field = "overlap_moe_expert_parallel_comm"
        if not job.model.is_plain:
            return field, "layers are paired where all are attention and an MLP or experts"
        if recipe.ep == 1:
            return field, "without expert parallelism there is no exchange to overlap"
        if recipe.recompute == "full":
            return field, "a pass that recomputes whole layers cannot be paired with another"
        if recipe.pp > 1 and recipe.vpp == 1:
            return field, "with pp > 1 the passes can only be paired under vpp > 1"
    return None


def looking_across(job: Job) -> Broken:
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
        return "framework", f"latents are many: attention is fused{too_old_for_it(job)}"
    return None


def pooling(job: Job) -> Broken:
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


def beside_the_hidden_state(job: Job) -> Broken:
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


def adapters(job: Job) -> Broken:
    lora, recipe = job.training.lora, job.recipe
    if lora is None:
        return None
    if lora.dora and recipe.tp > 1 and (lora.dropout or not job.framework.dora_of_factors):
        where = "beside dropout" if lora.dropout else "but in Megatron-Bridge"
        return "tp", f"tp={recipe.tp}: training.lora.dora is of whole weights {where}"
    if lora.dropout and job.framework.stacks_experts and lora.adapts_experts(job.model):
        instead = "training.lora.dropout=0, other targets or framework.stacks_experts=false"
        return "framework", f"PEFT drops no inputs of stacked experts' adapters ({instead})"
    if lora.rank % recipe.tp:
        return "tp", f"tp={recipe.tp} does not divide the rank {lora.rank} of training.lora"
    if "operations" in (recipe.recompute_modules or "").split("+"):
        return "recompute_modules", "operations is not modelled with training.lora"
    wide = job.keeps_fp32_adapters and not job.framework.autocast
    if wide and "fp32" not in job.gpu.peak_flops:
        return "framework", f"{job.gpu.name} multiplies no fp32 adapters (framework.autocast=true)"
    also = ("fp32", "tf32") if lora.frozen_weights != "int8" else ()
    if lora.packs_weights and job.precision not in ("bf16", "fp16", *also):
        kept = f"weights in {lora.frozen_weights} beside training.lora are multiplied in 16 bits"
        return "precision", f"{kept}, not in {job.precision}"
    return None


def teacher(job: Job) -> Broken:
    if job.training.distillation is None or job.reference is None:
        return None
    taught, recipe = job.reference, job.recipe
    for rule in (tensor_parallel_divides_model, sequence_parallel, context_parallel, experts):
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
