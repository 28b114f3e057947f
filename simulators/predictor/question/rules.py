"""Rules of pipelines, of what is computed again, sharded, kept in how many bits, and on the host.

As the rules of ``question.validity``, which says in which order they run: from a job to the field
to change and the reason, or None when they hold.
"""

from __future__ import annotations

from .errors import InputError
from .gpu import Gpu
from .job import Job
from .knobs.recomputation import OFFLOAD_MODULES, RECOMPUTE_MODULES
from .schedule_file import is_file, read_schedule
from .schedules import OWN, schedule_kind
from .training import OPTIMIZERS, QUANTISED, arithmetic_of

Broken = tuple[str, str] | None


def splits_layers(job: Job) -> Broken:
    try:
        job.layers_per_chunk  # noqa: B018 - the split is the check
    except InputError as error:
        return error.field, error.problem
    return None


def virtual_stages(job: Job) -> Broken:
    lacking = job.recipe.vpp > 1 and job.recipe.pp == 1
    return ("vpp", "virtual pipeline stages need pp > 1") if lacking else None


def enough_micro_batches(job: Job) -> Broken:
    recipe, count, kind = job.recipe, job.num_micro_batches, schedule_kind(job.schedule)
    if is_file(job.schedule):
        has = read_schedule(job.schedule).micro_batches
        problem = f"schedule={job.schedule} has {has} micro-batches, and a step has {count}"
        return None if count == has else ("micro_batch", problem)
    if kind.both_ways and count % 2:
        return "schedule", f"{job.schedule} needs an even number of micro-batches ({count})"
    if kind.ends_meet and count < job.least_micro_batches:
        least = f"at least {job.least_micro_batches}, as pp={recipe.pp}"
        return "schedule", f"{job.schedule} needs more micro-batches ({count}): {least}"
    if not kind.ends_meet and count % job.micro_batch_round:
        return "vpp", (
            f"the interleaved schedule needs micro-batches ({count}) in multiples of "
            f"pp={recipe.pp}"
        )
    return None


def schedule(job: Job) -> Broken:
    recipe, name = job.recipe, job.schedule
    if is_file(recipe.schedule):
        return _own_schedule(job)
    kind = schedule_kind(name)
    if name not in job.framework.schedules:
        has = ", ".join(job.framework.schedules)
        return "schedule", f"{job.framework.name} has no schedule {name}, only {has}"
    if kind.ends_meet and recipe.vpp != 2:
        return "vpp", f"schedule={name} has two chunks on each stage: vpp=2"
    if kind.both_ways and recipe.pp % 2:
        return "pp", f"schedule={name} mirrors the stages: an even number of them"
    if name == "zb-h2" and recipe.vpp > 1:
        return "vpp", "schedule=zb-h2 has one chunk on each stage: vpp=1"
    return _ends_or_compiled(job, name)


def _own_schedule(job: Job) -> Broken:
    recipe, name = job.recipe, job.recipe.schedule
    if OWN not in job.framework.schedules:
        return "schedule", f"{job.framework.name} loads no schedules from files"
    file = read_schedule(name)
    if recipe.pp != file.stages:
        return "pp", f"schedule={name} has {file.stages} ranks"
    if recipe.vpp != file.chunks:
        return "vpp", f"schedule={name} has {file.chunks} parts of the model on each rank"
    return _ends_or_compiled(job, name)


def _ends_or_compiled(job: Job, name: str) -> Broken:
    recipe, kind = job.recipe, schedule_kind(name)
    if kind.ends_meet and (recipe.first_stage_layers or recipe.last_stage_layers):
        field = "first_stage_layers" if recipe.first_stage_layers else "last_stage_layers"
        return field, f"under schedule={name} the first stage holds the model's end too"
    if kind.splits_backward and job.framework.fusion == "compiled":
        problem = "does not split backward passes of compiled layers: framework.fusion=eager"
        return "schedule", f"schedule={name}: {job.framework.name} {problem}"
    return None


def precision(job: Job) -> Broken:
    lacked = lacks(job.gpu, job.precision)
    for module, own in () if lacked else job.module_precision:
        if (unsupported := lacks(job.gpu, own)) is not None:
            lacked = f"training.module_precision.{module} is {own}, and {unsupported}"
    return None if lacked is None else ("precision", lacked)


def lacks(gpu: Gpu, precision: str) -> str | None:
    """What a GPU would need for a precision and has not, in words."""
    if precision == "mxfp8" and not gpu.architecture.microscaling:
        return f"{gpu.name} has no tensor cores that scale blocks of 32 values"
    if arithmetic_of(precision) not in gpu.peak_flops:
        return f"{gpu.name} has no {precision} arithmetic, only {', '.join(gpu.peak_flops)}"
    return None


def optimizer_states(job: Job) -> Broken:
    optimizer = OPTIMIZERS[job.training.optimizer]
    if optimizer.is_8bit and job.framework.moments_8bit == "none":
        return "framework", f"{job.framework.name} has no Adam with moments of 8 bits or fewer"
    if job.recipe.optimizer_states is None:
        return None
    if job.training.optimizer == "sgd" or optimizer.is_8bit:
        return "optimizer_states", "the precision-aware optimizer is Adam, of 16 bits or more"
    if not optimizer.has_copy:
        return "optimizer_states", "an optimizer without an fp32 copy of the weights keeps no less"
    if job.recipe.zero_stage == 0:
        return "optimizer_states", "the precision-aware optimizer needs a sharded one: zero_stage"
    if job.keeps_fp32:
        return "optimizer_states", "weights that are kept in fp32 have no other copy"
    return None


def quantised_parameters(job: Job) -> Broken:
    recipe, field = job.recipe, "fp8_param_gather"
    if not recipe.fp8_param_gather or job.precision not in QUANTISED:
        return None
    if recipe.zero_stage == 0:
        return field, "parameters kept in 8 bits need a sharded optimizer: zero_stage >= 1"
    if recipe.optimizer_offload and job.precision != "fp8":
        # As Megatron-LM's validate_args has it.
        return field, "the optimizer on the host updates parameters of delayed scales (fp8) only"
    return None


def quantised_products(job: Job) -> Broken:
    recipe, precision = job.recipe, job.precision
    if precision not in QUANTISED:
        return None
    if recipe.fp8_output_proj and precision != "mxfp8":
        return "fp8_output_proj", f"logits are multiplied in 8 bits in mxfp8, not in {precision}"
    if recipe.fp8_output_proj and job.model.tied_embeddings:
        return "fp8_output_proj", "the embedding, which is the output's weight too, has 16 bits"
    if recipe.fp8_dot_product_attention and precision == "fp8_block":
        return "fp8_dot_product_attention", "no attention takes blocks of 128 (fp8_block)"
    if recipe.fp8_dot_product_attention and job.attention == "unfused":
        return "fp8_dot_product_attention", "unfused attention multiplies in 16 bits"
    return None


def stored_activations(job: Job) -> Broken:
    recipe, field = job.recipe, "activation_func_fp8_input_store"
    if not recipe.activation_func_fp8_input_store:
        return None
    if not job.model.gated_mlp or job.model.clamped_mlp or job.keeps_fp32:
        return field, "what is kept in 8 bits is the 16-bit input of a SwiGLU"
    if job.framework.fusion != "fused":
        return field, f"{job.framework.name} has no SwiGLU that keeps its input in 8 bits"
    if job.framework.fused_experts and job.precision == "mxfp8" and job.model.moe is not None:
        return field, "experts in one kernel keep what it makes"
    if recipe.recompute == "selective" and "moe_act" in str(recipe.recompute_modules).split("+"):
        return field, "a SwiGLU that is run again keeps its input in 16 bits: recompute_modules"
    return None


def offloading(job: Job) -> Broken:
    recipe, field = job.recipe, "offloaded_layers"
    if not recipe.offloaded_layers:
        return None
    # As Megatron-Core's configuration refuses them.
    if recipe.pp > 1:
        return field, "activations are copied to the host without a pipeline only"
    inputs = recipe.recompute == "full" and job.framework.offloads_inputs
    if recipe.recompute != "none" and not inputs:
        return field, "activations that are recomputed are not copied to the host: recompute=none"
    if recipe.offloaded_layers >= job.model.num_layers + inputs:
        left = "are more than there are" if inputs else "leaves none on the GPU"
        return field, f"of {job.model.num_layers} layers {left}"
    if job.framework.cuda_graphs:
        return field, "copies to the host cannot be replayed as a CUDA graph: cuda_graphs"
    return None


def offloaded_modules(job: Job) -> Broken:
    recipe, field = job.recipe, "offload_modules"
    if recipe.offload_modules is None:
        return None
    modules = recipe.offload_modules.split("+")
    for module in modules:
        if module not in OFFLOAD_MODULES:
            return field, f"{module} is not one of {', '.join(OFFLOAD_MODULES)}"
    # As Megatron-Core's configuration refuses them.
    if recipe.offloaded_layers:
        return field, "activations of whole layers are offloaded or those of modules"
    if "attn_proj" in modules and "core_attn" not in modules:
        return field, "attn_proj reads what core_attn makes and keeps: both or neither"
    if job.framework.cuda_graphs and {"attn_norm", "mlp_norm"}.intersection(modules):
        return field, "inputs of norms are what CUDA graphs are handed: cuda_graphs"
    if recipe.recompute == "full":
        return field, "layers that are recomputed keep nothing inside: recompute"
    return None


def host_optimizer(job: Job) -> Broken:
    recipe, field, how = job.recipe, "optimizer_offload", job.framework.host_optimizer
    if not recipe.optimizer_offload:
        return None
    if how == "none":
        return field, f"{job.framework.name} has no optimizer on the host"
    if job.training.optimizer == "sgd" or job.keeps_fp32:
        return field, "the optimizer on the host is Adam of 16-bit weights"
    if recipe.optimizer_states is not None or job.optimizer not in ("adam", "adam_bf16"):
        return field, "the optimizer on the host keeps fp32 states: optimizer_states=null"
    if how == "pipelined" and recipe.zero_stage != 1:
        return field, "the hybrid optimizer is the distributed one: zero_stage=1"
    if how == "serial" and recipe.zero_stage < 1:
        return field, "ZeRO-Offload's optimizer is a sharded one: zero_stage >= 1"
    if how == "serial" and recipe.zero_stage < 3 and recipe.optimizer_offload < 100:
        return field, "a part of the optimizer stays on the GPU under zero_stage=3 only"
    return None


def too_old_for_it(job: Job) -> str:
    declared = job.framework.attention
    if job.attention != "unfused" or declared == "unfused":
        return ""
    return f"; {job.gpu.name} has no {declared} kernels"


def recompute(job: Job) -> Broken:
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
            reason = f"operations keeps what flash attention made{too_old_for_it(job)}"
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


def packs(job: Job) -> Broken:
    number, framework = job.recipe.micro_batch, job.framework
    if job.training.packed_lengths and number > 1 and "several_packs" in framework.lacks:
        return "micro_batch", f"micro_batch={number}: {framework.name} takes packs one by one"
    return None


def sharding(job: Job) -> Broken:
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


def sharding_group(job: Job) -> Broken:
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
