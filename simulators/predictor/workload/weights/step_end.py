"""What ends a step: shared and sharded gradients made whole, gradient norm, optimizer."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import schedule_kind
from trainscout.simulators.predictor.question.training import ADAM_OPERATIONS, OPTIMIZERS
from trainscout.simulators.predictor.workload.ir import (
    Block,
    Collective,
    HostUpdate,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.parameters import LocalParameters

from .data_parallel import TENSORS_OF_A_LAYER, gradient_bytes_per_parameter, shard_launches
from .weights import parameter_bytes, weight_casts

# What the host's memory moves a parameter: gradient, master and both moments are read and all but
# the gradient written, in fp32; then it is cast to 16 bits. ZeRO-Offload also takes the gradients'
# norm there (4), and clips them (8); under ZeRO 3 the GPU takes the norm, and the host looks
# through gradients in 16 bits for infinities (8: |g| made, compared, looked through), NaNs (4).
_HOST_UPDATE_BYTES = 28 + 6
_HOST_CLIP_BYTES, _HOST_CLIP_BYTES_ZERO3 = 4 + 8, 8 + 8 + 4
# fp32 master, moments and gradient; ZeRO-Offload adds the 16-bit parameters that travel back.
_HOST_STATES_BYTES = 16
_HOST_COPY_BYTES = 2
# Elements that DeepSpeed's ZeRO 3 updates at a time (``sub_group_size``).
DEEPSPEED_SUB_GROUP = 1_000_000_000


def owned_parameters(parameters: LocalParameters, job: Job) -> int:
    """Parameters whose optimizer state this rank keeps."""
    return sum(_owned_by_kind(parameters, job))


def _owned_by_kind(parameters: LocalParameters, job: Job) -> tuple[int, int]:
    """Dense ones and experts', which have an optimizer each."""
    if job.recipe.zero_stage == 0:
        return parameters.dense, parameters.expert
    expert = parameters.expert and -(-parameters.expert // (job.expert_dp // job.shard_copies))
    return -(-parameters.dense // _dense_shards(job)), expert


def _dense_shards(job: Job) -> int:
    return job.dp // job.shard_copies * job.recipe.cp if job.recipe.zero_stage else 1


def moment_bytes(parameters: LocalParameters, job: Job) -> int:
    """Bytes of the moments of a rank's own parameters, without those on the host."""
    optimizer, owned = OPTIMIZERS[job.optimizer], owned_parameters(parameters, job)
    size = (owned - host_parameters(owned, job)) * optimizer.moment_bytes
    if optimizer.is_8bit and job.framework.moments_8bit == "layers":
        whole = OPTIMIZERS["adam"].moment_bytes - optimizer.moment_bytes
        size += parameters.embedding / _dense_shards(job) * whole
    return int(size)


def update_bytes(parameters: LocalParameters, job: Job) -> int:
    """What an update holds besides: of either kind of weights the fp32 copies of 16-bit moments;
    of all at once the roots of second moments, where each of Adam's operations is a kernel, or of
    one tensor after another, an embedding's at most, the roots and what is made of them.

    DeepSpeed flattens 16-bit gradients and copies that to fp32, then lets both 16-bit ones go
    (ZeRO 1 and 2), or so many at a time as ``sub_group_size`` and only the flat one (ZeRO 3).
    """
    if _unpacks_moments(job):
        return int(OPTIMIZERS["adam"].moment_bytes * max(_owned_by_kind(parameters, job)))
    roots = 0 if _in_one_pass(job) else moment_bytes(parameters, job) // 2
    if job.framework.optimizer_operations:
        roots = min(roots, 2 * 4 * parameters.embedding // _dense_shards(job))
    size, zero = gradient_bytes_per_parameter(job), job.recipe.zero_stage
    if not (job.framework.flattens_gradients and zero and size == parameter_bytes(job) == 2):
        return roots
    owned = owned_parameters(parameters, job)
    here = owned - host_parameters(owned, job)
    part = min(here, DEEPSPEED_SUB_GROUP) if zero == 3 else here
    roots = roots * part // max(1, here)
    return max((size + 4) * part, 4 * part + roots - size * part * (zero < 3))


def _in_one_pass(job: Job) -> bool:
    return job.framework.fused_optimizer or OPTIMIZERS[job.optimizer].in_one_pass


def _tensors_of_layer(job: Job) -> int:
    """Trained tensors of a layer without experts, or of its adapters; the first FSDP has one."""
    model, framework, training = job.model, job.framework, job.training
    apart = framework.separate_projections
    halves = model.gated_mlp and (apart or not framework.joined_halves)
    qkv = 3 if apart else 1
    products = {"linear_qkv": qkv, "linear_proj": 1, "linear_fc1": 1 + halves, "linear_fc2": 1}
    if training.lora is not None:
        return (2 + training.lora.dora) * sum(products[name] for name in training.lora.targets)
    if not training.trains_weights:
        return 0
    if job.recipe.zero_stage >= 2 and framework.torch_wrappers and not framework.copies_gathered:
        return 1
    biases = 0 if model.linear_bias else qkv * model.qkv_bias
    norms = 4 if model.qk_norm else 2
    return (sum(products.values()) + norms) * (2 if model.linear_bias else 1) + biases


def _unpacks_moments(job: Job) -> bool:
    return job.optimizer == "adam_bf16" and job.framework.unpacks_moments


def host_parameters(owned: int, job: Job) -> int:
    """Of a rank's own parameters those that the host updates."""
    return owned * job.recipe.optimizer_offload // 100


def host_states_bytes(parameters: LocalParameters, job: Job) -> int:
    """What of a rank's optimizer lies in the host's memory."""
    copied = _HOST_COPY_BYTES if job.framework.host_optimizer == "serial" else 0
    away = host_parameters(owned_parameters(parameters, job), job)
    return away * (_HOST_STATES_BYTES + copied)


def copied_gradient_bytes(parameters: LocalParameters, job: Job) -> int:
    """Bytes that ZeRO-Offload copies with a backward pass from ZeRO 2 on (DeepSpeed 0.16.4).

    ZeRO 2 sends one micro-batch's gradients in fp32; of several, each in 16 bits with what those
    before left coming back, the last in fp32 (``async_accumulate_grad_in_cpu_via_gpu``). ZeRO 3
    has 16-bit ones there and back even of one, and sends fp32 in the end (``partition_grads``).
    """
    if job.framework.host_optimizer != "serial" or job.recipe.zero_stage < 2:
        return 0
    away = host_parameters(owned_parameters(parameters, job), job)
    return 4 * away + (4 * away // job.num_micro_batches if job.recipe.zero_stage == 3 else 0)


def master_bytes(job: Job) -> int:
    """Bytes of the fp32 master copy, or of what bf16 weights lack of it; fp32 weights, and those
    without such a copy, are updated themselves."""
    if job.keeps_fp32 or not OPTIMIZERS[job.optimizer].has_copy:
        return 0
    return 2 if job.framework.master_remainders and job.precision == "bf16" else 4


def finish_block(
    job: Job, parameters: LocalParameters, num_layers: int, *, shares_embedding: bool
) -> Block:
    """Megatron's gradient finalisation and clipping, after data-parallel reduction."""
    model, recipe = job.model, job.recipe
    size = gradient_bytes_per_parameter(job)
    ops: list[Op] = []
    trains = job.training.trains_weights
    if recipe.sp and recipe.tp > 1 and trains:
        # Norm weights, and the biases that follow a scattered sum, see only their shard of the
        # sequence.
        vectors = 2 * (2 if model.normalization == "layernorm" else 1)
        vectors += 2 if model.linear_bias else 0
        norm_bytes = num_layers * vectors * model.hidden_size * size
        ops.append(Collective("norm_grads", "all_reduce", norm_bytes, "tp", "fp32"))
    if shares_embedding and trains:
        rows = model.padded_vocab_size(recipe.tp, job.framework.aligns_vocabulary) // recipe.tp
        moved = rows * model.hidden_size * size
        ops.append(Collective("embedding_grads", "all_reduce", moved, "embedding", "fp32"))
    # The host would have to wait to look.
    if job.framework.checks_gradients and not job.replays_iterations:
        ops.append(Streaming("check_grads", "reduce", size * parameters.total))
    if job.framework.divides_gradients and job.dp * recipe.cp > 1:
        ops.append(Streaming("divide_grads", "elementwise", 2 * size * parameters.total))
    if job.framework.torch_wrappers and recipe.zero_stage == 0 and job.dp * recipe.cp > 1:
        moved = 4 * size * parameters.total
        launches = 2 * (num_layers * TENSORS_OF_A_LAYER + 1)
        ops.append(Streaming("bucket_copies", "memcpy", moved, launches=launches))
    owned = owned_parameters(parameters, job)
    if schedule_kind(job.schedule).both_ways and trains:
        # Mirrored stages hold the same two parts of the model, and sum what each has of them.
        ops.append(Collective("copies", "all_reduce", owned * size, "embedding", "fp32"))
    ops.append(Streaming("grad_norm", "reduce", owned * size, launches=4))
    if recipe.tp * recipe.pp > 1:
        ops.append(Collective("grad_norm_sum", "all_reduce", 4, "model", "fp32"))
    if recipe.zero_stage >= 1 and job.dp * recipe.cp > 1:
        ops.append(Collective("grad_norm_shards", "all_reduce", 4, "dp", "fp32"))
    return Block("finish_gradients", tuple(ops))


def optimizer_block(job: Job, parameters: LocalParameters, num_layers: int) -> Block:
    """Clip, update, write back, zero the gradients, and quantise what is multiplied so.

    The update reads gradient, master (or parameter) and moments, and writes master, moments
    and, where it is half of the master, the forward copy, which it reads, too. Of an fp32 master
    the copy is made by kernels of its own (Megatron's ``_copy_main_params_to_model_params``,
    DeepSpeed's ``step``). Where 16-bit moments are unpacked for it, it works on their fp32 copies.
    """
    size = gradient_bytes_per_parameter(job)
    owned = owned_parameters(parameters, job)
    away = host_parameters(owned, job)
    here = owned - away
    serial = job.framework.host_optimizer == "serial"
    # From ZeRO 2 on, what outlives a micro-batch is the shard, which ZeRO-Offload has on the host.
    held = here if job.recipe.zero_stage >= 2 else parameters.total
    weight = master_bytes(job) or parameter_bytes(job)
    kept = moment_bytes(parameters, job)
    moments = int(here * OPTIMIZERS["adam"].moment_bytes) if _unpacks_moments(job) else kept
    copy = 2 * parameter_bytes(job) if master_bytes(job) == 2 else 0
    update = here * (size + 2 * weight + copy) + 2 * moments
    launches = 4
    if not _in_one_pass(job):
        # ``_multi_tensor_adamw``: of weights 4 tensors are read or written, of gradients 2, of
        # first moments 3 and of second ones, their roots among them, 11.
        update = here * (2 * size + 4 * weight + copy) + 7 * moments
        if operations := job.framework.optimizer_operations:
            # An optimizer's other operations read and write as many tensors as Adam's.
            update = update * operations // ADAM_OPERATIONS
            kernels = operations * (num_layers * _tensors_of_layer(job) + 1)
            launches = math.ceil(kernels * job.framework.pace_of_kernels)
    clipped = here if serial else owned
    ops: list[Op] = [
        Streaming("clip_grads", "elementwise", 2 * clipped * size),
        Streaming("update", "optimizer", update, launches),
    ]
    if master_bytes(job) == 4:
        ops.append(Streaming("copy_weights", "cast", here * (4 + parameter_bytes(job))))
    if not job.framework.torch_wrappers:
        # PyTorch's optimizers let gradients go (``set_to_none``).
        ops.append(Streaming("zero_grads", "memcpy", held * size, launches=2))
    if moments != kept:
        # To fp32 and back, the latter by way of 16 bits of their own.
        unpacked = 2 * (kept + moments + kept)
        ops.insert(1, Streaming("unpack_moments", "cast", unpacked, launches=6))
    if away:
        clip = _HOST_CLIP_BYTES_ZERO3 if job.recipe.zero_stage == 3 else _HOST_CLIP_BYTES
        moved = away * (_HOST_UPDATE_BYTES + (clip if serial else 0))
        # ZeRO-Offload's gradients leave as they are reduced: from ZeRO 2 on, and under ZeRO 1 with
        # ``overlap_comm``, which DeepSpeed's pipelines have not, beside the backward pass.
        overlaps = job.recipe.overlap_grad_reduce and job.recipe.pp == 1
        beside = serial and (job.recipe.zero_stage >= 2 or overlaps)
        gradients = 0 if beside else 4 * away
        ops.insert(1, HostUpdate("host_update", gradients, moved, 2 * away, not serial))
    if job.framework.copies_shards and job.recipe.zero_stage == 1 and job.dp > 1 and num_layers:
        shards = job.dp * num_layers * TENSORS_OF_A_LAYER
        moved = 2 * parameter_bytes(job) * parameters.total
        ops.append(Streaming("shard_copies", "memcpy", moved, shard_launches(job, shards)))
    ops += weight_casts(job, parameters)
    # DeepSpeed's hooks under ZeRO 1 reduce with the last micro-batch.
    hooked = job.framework.flattens_gradients and job.recipe.zero_stage == 1
    # What plain DDP keeps alike are no DTensors.
    sharded = job.recipe.zero_stage and job.is_replicated
    listed = job.framework.flattens_gradients or sharded or job.recipe.tp > 1
    return Block("optimizer", tuple(ops), listed=num_layers * (1 + hooked) if listed else 0)
