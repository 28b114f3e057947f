"""What ends a step: shared and sharded gradients made whole, gradient norm, optimizer."""

from __future__ import annotations

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import schedule_kind

from .data_parallel import TENSORS_OF_A_LAYER, gradient_bytes_per_parameter, shard_launches
from .ir import Block, Collective, HostUpdate, Op, Streaming
from .parameters import LocalParameters
from .weights import parameter_bytes, weight_casts

# fp32 values the optimizer keeps per parameter besides the master weight.
MOMENT_BYTES = {"adam": 8, "adam_bf16": 4, "adam_pure_bf16": 4, "sgd": 4}


# What the host's memory moves a parameter: gradient, master and both moments are read and all but
# the gradient written, in fp32; then it is cast to 16 bits. ZeRO-Offload also takes the gradients'
# norm there, and clips them.
_HOST_UPDATE_BYTES = 28 + 6
_HOST_CLIP_BYTES = 12
# fp32 master, moments and gradient; ZeRO-Offload adds the 16-bit parameters that travel back.
_HOST_STATES_BYTES = 16
_HOST_COPY_BYTES = 2


def owned_parameters(parameters: LocalParameters, job: Job) -> int:
    """Parameters whose optimizer state this rank keeps."""
    return sum(_owned_by_kind(parameters, job))


def _owned_by_kind(parameters: LocalParameters, job: Job) -> tuple[int, int]:
    """Dense ones and experts', which have an optimizer each."""
    if job.recipe.zero_stage == 0:
        return parameters.dense, parameters.expert
    copies = job.shard_copies
    dense = -(-parameters.dense // (job.dp // copies * job.recipe.cp))
    expert = -(-parameters.expert // (job.expert_dp // copies)) if parameters.expert else 0
    return dense, expert


def update_bytes(parameters: LocalParameters, job: Job) -> int:
    """What an update holds besides: of either kind of weights the fp32 copies of 16-bit moments;
    of all at once the roots of second moments, where each of Adam's operations is a kernel."""
    if _unpacks_moments(job):
        return MOMENT_BYTES["adam"] * max(_owned_by_kind(parameters, job))
    if job.framework.fused_optimizer or job.optimizer == "sgd":
        return 0
    owned = owned_parameters(parameters, job)
    return MOMENT_BYTES[job.optimizer] // 2 * (owned - host_parameters(owned, job))


def _unpacks_moments(job: Job) -> bool:
    return job.optimizer == "adam_bf16" and job.framework.unpacks_moments


def host_parameters(owned: int, job: Job) -> int:
    """Of a rank's own parameters those that the host updates."""
    return owned * job.recipe.optimizer_offload // 100


def host_states_bytes(parameters: LocalParameters, job: Job) -> int:
    """What of a rank's optimizer lies in the host's memory."""
    size = _HOST_STATES_BYTES
    if job.framework.host_optimizer == "serial":
        size += _HOST_COPY_BYTES
    return host_parameters(owned_parameters(parameters, job), job) * size


def master_bytes(job: Job) -> int:
    """Bytes of the fp32 master copy, or of what bf16 weights lack of it; fp32 weights, and those
    without such a copy, are updated themselves."""
    if job.keeps_fp32 or job.optimizer == "adam_pure_bf16":
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
    and the forward copy, which it reads too where it is half of the master. Where 16-bit moments
    are unpacked for it, it works on their fp32 copies.
    """
    size = gradient_bytes_per_parameter(job)
    owned = owned_parameters(parameters, job)
    away = host_parameters(owned, job)
    serial = job.framework.host_optimizer == "serial"
    # From ZeRO 2 on, what outlives a micro-batch is the shard, which ZeRO-Offload has on the host.
    held = owned - away if job.recipe.zero_stage >= 2 else parameters.total
    weight = master_bytes(job) or parameter_bytes(job)
    kept = MOMENT_BYTES[job.optimizer]
    moments = MOMENT_BYTES["adam"] if _unpacks_moments(job) else kept
    copy = parameter_bytes(job) if master_bytes(job) else 0
    if 0 < master_bytes(job) < 4:
        copy *= 2
    update = size + 2 * (weight + moments) + copy
    if not job.framework.fused_optimizer and job.optimizer != "sgd":
        # ``_multi_tensor_adamw``: of weights 4 tensors are read or written, of gradients 2, of
        # first moments 3 and of second ones, their roots among them, 11.
        update = 2 * size + 4 * weight + 7 * moments + copy
    clipped = owned - away if serial else owned
    ops: list[Op] = [
        Streaming("clip_grads", "elementwise", 2 * clipped * size),
        Streaming("update", "optimizer", (owned - away) * update, launches=4),
    ]
    if not job.framework.torch_wrappers:
        # PyTorch's optimizers let gradients go (``set_to_none``).
        ops.append(Streaming("zero_grads", "memcpy", held * size, launches=2))
    if moments != kept:
        # To fp32 and back, the latter by way of 16 bits of their own.
        unpacked = (owned - away) * 2 * (kept + moments + kept)
        ops.insert(1, Streaming("unpack_moments", "cast", unpacked, launches=6))
    if away:
        moved = away * (_HOST_UPDATE_BYTES + (_HOST_CLIP_BYTES if serial else 0))
        # ZeRO-Offload's gradients have left beside the backward pass.
        gradients = 0 if serial else 4 * away
        ops.insert(1, HostUpdate("host_update", gradients, moved, 2 * away, not serial))
    if job.framework.copies_shards and job.recipe.zero_stage == 1 and job.dp > 1 and num_layers:
        shards = job.dp * num_layers * TENSORS_OF_A_LAYER
        moved = 2 * parameter_bytes(job) * parameters.total
        ops.append(Streaming("shard_copies", "memcpy", moved, shard_launches(job, shards)))
    ops += weight_casts(job, parameters)
    return Block("optimizer", tuple(ops))
