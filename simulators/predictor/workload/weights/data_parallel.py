"""Gradient reduction and parameter gathering, in buckets, as Megatron-LM and FSDP issue them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ir import Block, Collective, HostSync, Op, Streaming
from trainscout.simulators.predictor.workload.parameters import LocalParameters

from .weights import gathered_weight_bytes, parameter_bytes

# Megatron-LM's default bucket: max(40 M, 1 M x data-parallel size) parameters when gradients
# are reduced beside the backward pass, the whole buffer otherwise.
MEGATRON_BUCKET = 40_000_000
MEGATRON_BUCKET_PER_REPLICA = 1_000_000
# Matrices of a layer; what is smaller stays whole on every rank of DeepSpeed's ZeRO 3
# (``param_persistence_threshold``).
MATRICES_OF_A_LAYER = 4
# With its two norms.
TENSORS_OF_A_LAYER = 6
# Copying one rank's share of a gathered tensor is a launch; the host takes about as long again to
# cut it out of both tensors (three views, assumed). A list's copies are launched at the driver's
# pace, whatever a module of the framework takes.
LAUNCHES_OF_A_SHARD = 2
_NONE = LocalParameters()
# Names of the two blocks.
REDUCE, GATHER = "reduce_gradients", "gather_parameters"


def gradient_bytes_per_parameter(job: Job) -> int:
    return 4 if job.accumulates_fp32 or job.keeps_fp32 else 2


def _reduced_bytes(job: Job) -> int:
    """Bytes that a gradient travels as: of fp32 ones that DeepSpeed flattens a 16-bit copy
    (``allreduce_bucket``: ``tensor.to(communication_data_type)``)."""
    size = gradient_bytes_per_parameter(job)
    return min(size, parameter_bytes(job)) if job.framework.flattens_gradients else size


def bucket_parameters(job: Job) -> int | None:
    """Parameters per communication bucket; None: everything at hand goes in one call.

    FSDP and ``zero_stage`` 3 have no buckets: a layer's flat parameter travels whole. Gradients
    that are sharded (2) always travel beside the backward pass.
    """
    recipe = job.recipe
    overlapped = recipe.overlap_grad_reduce or recipe.zero_stage == 2
    if not overlapped or job.gathers_units:
        return None
    return max(MEGATRON_BUCKET, MEGATRON_BUCKET_PER_REPLICA * job.dp * recipe.cp)


@dataclass(frozen=True)
class Transfer:
    """What gradient and parameter communication depends on, besides the parameters.

    ``sharded``: every rank gets only its shard of the reduced gradients. Sizes are bytes of
    one gradient and one parameter; ``bucket`` is that of ``bucket_parameters``. Under FSDP frozen
    parameters are sharded and gathered too. Where shards have
    ``copies``, ``shards`` of the dense and of the expert parameters make one. ``share_launches``:
    what copies the shares out of a matrix that is gathered alone (``gathers_tensors``), if it is.
    ``times``: so often is gathered for a backward pass what is recomputed whole.
    ``quantised_bytes`` of a quantised parameter travel. In so many ``broadcasts`` a stage's dense
    parameters reach those that do not own them, if not by gathers (``broadcasts_shards``).
    """

    sharded: bool
    gradient_bytes: int
    parameter_bytes: int
    bucket: int | None
    gathers_frozen: bool = False
    copies: int = 1
    shards: tuple[int, int] = (1, 1)
    share_launches: int = 0
    quantised_bytes: float = 0.0
    times: int = 1
    broadcasts: int = 0

    @classmethod
    def of(cls, job: Job) -> Transfer:
        recipe, framework, copies = job.recipe, job.framework, job.shard_copies
        owners, broadcasts = job.dp // copies * recipe.cp, 0
        last = recipe.zero_stage == 1 and not recipe.overlap_param_gather
        if last and framework.broadcasts_shards:
            layers = -(-job.model.num_layers // recipe.pp)
            broadcasts = min(owners, layers * TENSORS_OF_A_LAYER)
        alone, in_fp32 = gathers_alone(job), framework.reduce_grads_fp32
        return cls(
            sharded=recipe.zero_stage >= (3 if framework.allreduces_gradients else 1),
            gradient_bytes=4 if in_fp32 else _reduced_bytes(job),
            parameter_bytes=parameter_bytes(job),
            bucket=bucket_parameters(job),
            gathers_frozen=recipe.zero_stage == 3,
            copies=copies,
            shards=(owners, job.expert_dp // copies) if copies > 1 else (1, 1),
            share_launches=shard_launches(job, job.dp) if alone else 0,
            quantised_bytes=gathered_weight_bytes(job),
            times=1 + (alone or framework.gathers_to_recompute) + framework.leaves_regathered,
            broadcasts=broadcasts,
        )


def flattened_bytes(job: Job) -> int:
    """Bytes that a gradient moves with every micro-batch to be reduced, where it is copied for it.

    DeepSpeed copies it into a bucket, and divides that; ZeRO 3 puts the ranks' shares of a bucket
    in order in between (0.11: ``__add_grad_to_ipg_bucket``, ``reduce_scatter_coalesced``). FSDP2
    copies it to where, and as what, it is reduced (``foreach_reduce_scatter_copy_in``). The first
    FSDP's parameters are views of one tensor, whose gradient autograd puts together; it is cast
    and divided (``_flat_param.py``, ``_runtime_utils.py``: ``_reduce_grad``).
    """
    framework, stage = job.framework, job.recipe.zero_stage
    size = gradient_bytes_per_parameter(job)
    if stage < 2 or gathers_alone(job):
        return 0
    if framework.flattens_gradients:
        return 2 * size * (3 if stage == 3 else 2)
    if not framework.torch_wrappers:
        return 0
    reduced = 4 if framework.reduces_fp32 else size
    if framework.sums_whole_grads and job.num_micro_batches > 1:
        # Added to those before; the first's is not, the last's is copied and cast besides.
        return size + 2 * reduced if framework.copies_gathered else 5 * size
    if framework.copies_gathered:
        return size + reduced
    return 2 * size + (size + reduced if reduced > size else 0) + 2 * reduced


def gathers_alone(job: Job) -> bool:
    """Whether nothing runs beside the gathers of a step's passes."""
    return job.framework.gathers_tensors and job.recipe.zero_stage == 3


def shard_launches(job: Job, shards: int) -> int:
    """Launches, at the framework's pace, that copy so many ranks' shares."""
    return math.ceil(LAUNCHES_OF_A_SHARD * shards * job.framework.pace_of_kernels)


@functools.lru_cache(maxsize=4096)
def reduce_gradients(parameters: LocalParameters, transfer: Transfer) -> Block:
    """The collectives that reduce the gradients of ``parameters``.

    All-reduce without a sharded optimizer, reduce-scatter with one; shards that others hold too
    are all-reduced among those.
    """
    size, bucket = transfer.gradient_bytes, transfer.bucket
    if transfer.share_launches:
        return Block(REDUCE, _matrices("grad", "reduce_scatter", parameters, size, transfer, "dp"))
    if transfer.copies == 1:
        kind = "reduce_scatter" if transfer.sharded else "all_reduce"
        return Block(REDUCE, _bucketed("grad", kind, parameters, size, bucket))
    dense, expert = transfer.shards
    shard = LocalParameters(-(-parameters.dense // dense), -(-parameters.expert // expert))
    per_shard = None if bucket is None else max(1, bucket // dense)
    ops = _bucketed("grad", "reduce_scatter", parameters, size, bucket, "_shard")
    ops += _bucketed("grad", "all_reduce", shard, size, per_shard, "_copies")
    return Block(REDUCE, ops)


@functools.lru_cache(maxsize=4096)
def gather_parameters(
    parameters: LocalParameters, transfer: Transfer, *, again: bool = False
) -> Block:
    """What gathers or broadcasts ``parameters`` from their shards; ``again``: for a backward pass
    of what is recomputed whole."""
    parameters = parameters.held if transfer.gathers_frozen else parameters
    size, group = transfer.parameter_bytes, "" if transfer.copies == 1 else "_shard"
    if transfer.share_launches:
        small = transfer.quantised_bytes
        ops = _matrices("param", "all_gather", parameters, size, transfer, "dp" + group, small)
    elif transfer.broadcasts:
        each = -(-parameters.dense // transfer.broadcasts)
        ops = _bucketed("param", "broadcast", parameters, size, each, group)
    else:
        saved = size - transfer.quantised_bytes
        ops = _bucketed("param", "all_gather", parameters, size, transfer.bucket, group, saved)
    return Block(GATHER, ops * transfer.times if again else ops)


def _matrices(
    name: str,
    kind: str,
    parameters: LocalParameters,
    size: int,
    transfer: Transfer,
    communicator: str,
    small: float | None = None,
) -> tuple[Op, ...]:
    """A call for each weight matrix, and the copies of all ranks' shares into or out of it;
    quantised ones have ``small`` bytes."""
    each = math.ceil(parameters.total / MATRICES_OF_A_LAYER) * size
    if small is not None and parameters.quantised is not None:
        each -= int(parameters.quantised.total * (size - small) / MATRICES_OF_A_LAYER)
    one: tuple[Op, ...] = (
        HostSync(f"{name}_matrix"),
        Collective(f"{name}_{kind}", kind, each, communicator, "fp32" if size == 4 else "bf16"),
        Streaming("shard_copies", "memcpy", 2 * each, transfer.share_launches),
    )
    return one * MATRICES_OF_A_LAYER


def _bucketed(
    name: str,
    kind: str,
    parameters: LocalParameters,
    size: int,
    bucket: int | None,
    group: str = "",
    saved: float = 0.0,
) -> tuple[Op, ...]:
    """The calls for both kinds of parameters, over the communicators of ``group``; quantised ones
    are smaller by the bytes ``saved``."""
    ops: list[Op] = []
    small = parameters.quantised or _NONE
    for count, quantised, communicator in (
        (parameters.dense, small.dense, "dp"),
        (parameters.expert, small.expert, "expert_dp"),
    ):
        if not count:
            continue
        pieces = max(1, round(count / bucket)) if bucket else 1
        dtype = "fp32" if size == 4 else "bf16"
        each = math.ceil(count / pieces) * size - int(quantised * saved / pieces)
        ops += [Collective(f"{name}_{kind}", kind, each, communicator + group, dtype)] * pieces
    return tuple(ops)
