"""Gradient reduction and parameter gathering, in buckets, as Megatron-LM and FSDP issue them."""

from __future__ import annotations

import functools
import math

from simulators.job import Job
from simulators.workload.ir import Block, Collective, Op
from simulators.workload.parameters import LocalParameters

# Megatron-LM's default bucket: max(40 M, 1 M x data-parallel size) parameters when gradients
# are reduced beside the backward pass, the whole buffer otherwise.
MEGATRON_BUCKET = 40_000_000
MEGATRON_BUCKET_PER_REPLICA = 1_000_000


def gradient_bytes_per_parameter(job: Job) -> int:
    if job.training.accumulate_grads_fp32 or job.precision in ("fp32", "tf32"):
        return 4
    return 2


def parameter_bytes(job: Job) -> int:
    """Bytes of one parameter as used in the forward pass."""
    return 4 if job.precision in ("fp32", "tf32") else 2


def bucket_parameters(job: Job) -> int | None:
    """Parameters per communication bucket; None when nothing is bucketed."""
    recipe = job.recipe
    if not recipe.overlap_grad_reduce:
        return None
    return max(MEGATRON_BUCKET, MEGATRON_BUCKET_PER_REPLICA * job.dp * recipe.cp)


@functools.lru_cache(maxsize=4096)
def reduce_gradients(parameters: LocalParameters, job_key: tuple[int, int, int, int]) -> Block:
    """The collectives that reduce the gradients of ``parameters``.

    All-reduce without a sharded optimizer, reduce-scatter with one. ``job_key`` is
    ``(zero_stage, bytes per gradient, bucket parameters or 0, 0)``, see ``sharing_key``.
    """
    zero_stage, size, bucket, _ = job_key
    kind = "reduce_scatter" if zero_stage >= 1 else "all_reduce"
    return Block("reduce_gradients", _bucketed("grad", kind, parameters, size, bucket))


@functools.lru_cache(maxsize=4096)
def gather_parameters(parameters: LocalParameters, job_key: tuple[int, int, int, int]) -> Block:
    """The all-gathers that rebuild ``parameters`` from their shards."""
    _, _, bucket, size = job_key
    return Block("gather_parameters", _bucketed("param", "all_gather", parameters, size, bucket))


def sharing_key(job: Job) -> tuple[int, int, int, int]:
    """What gradient and parameter communication depends on, besides the parameters."""
    return (
        job.recipe.zero_stage,
        gradient_bytes_per_parameter(job),
        bucket_parameters(job) or 0,
        parameter_bytes(job),
    )


def _bucketed(
    name: str, kind: str, parameters: LocalParameters, size: int, bucket: int
) -> tuple[Op, ...]:
    ops: list[Op] = []
    for count, communicator in ((parameters.dense, "dp"), (parameters.expert, "expert_dp")):
        if not count:
            continue
        pieces = max(1, round(count / bucket)) if bucket else 1
        dtype = "fp32" if size == 4 else "bf16"
        each = math.ceil(count / pieces) * size
        ops += [Collective(f"{name}_{kind}", kind, each, communicator, dtype)] * pieces
    return tuple(ops)
