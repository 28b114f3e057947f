"""GPU memory of every pipeline stage over one step.

Static: parameters, gradients, optimizer state. Dynamic: activations of the micro-batches in
flight (counted along the stage's own schedule), the largest temporary on top of them, and
communication staging; or what the optimizer holds while it runs, if that is more. Outside the
framework's allocator: CUDA context and NCCL's buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Memory, StageMemory
from trainscout.simulators.predictor.question.cluster import Cluster, HostShare
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import schedule_kind
from trainscout.simulators.predictor.question.training import ACTIVATION_BYTES
from trainscout.simulators.predictor.workload.ir import Alloc
from trainscout.simulators.predictor.workload.part import ROUTER_GRAPH
from trainscout.simulators.predictor.workload.program import Stage, Workload
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    waiting_bytes,
)
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order
from trainscout.simulators.predictor.workload.weights.step_end import (
    host_states_bytes,
    update_bytes,
)

from .bands import band_of, spread_of
from .static import Absent, Static, static_of
from .unused import (
    cached_bytes,
    copied_bytes,
    deferred_bytes,
    flattened_bytes,
    gathered_bytes,
    pooled_bytes,
    streamed_bytes,
    vacated_bytes,
)

Ints = NDArray[np.int64]
MIB = 2**20
# PyTorch's caching allocator takes memory from the device in segments of multiples of 2 MiB. A
# free block serves a smaller request, but blocks of different segments never join: what is
# reserved exceeds what was ever allocated at once. SimuMax's 37 published B200 runs of
# Megatron-LM print both: 2.8 to 9.3 % more, the median 4.7 %. Expandable segments do join.
SEGMENT_BYTES = 2 * MIB
FRAGMENTATION = 0.047
# A connection has one buffer per protocol on the receiving side, by NCCL's defaults 4 MiB for
# Simple, 512 KiB for LL and 4.69 MiB for LL128, and counters on the sending one, both in pages of
# 2 MiB (``transport/p2p.cc``; GPUs that read have Simple's on the other side). NVIDIA/nccl issue
# 1685: an all-to-all on 8 H100 adds 3.3 GB, by 10 and 2 MiB for each of 32 channels to a peer.
NCCL_CONNECTION_BYTES = 12 * MIB
# Until 1.13, which came with NCCL 2.14, PyTorch loaded all its kernels into the context: with one
# tensor nvidia-smi shows 1,687 MiB on Ampere (pytorch/pytorch issue 55277, CUDA 11.1), and 400 or
# so since CUDA loads kernels as they are launched (issue 107667).
EAGER_KERNELS_BYTES = 1200 * MIB
# Streams of Transformer Engine's grouped products (2.9: ``get_multi_stream_cublas_workspace``).
EXPERT_STREAMS = 4
KERNELS_LAZY_SINCE = (2, 14)


def footprint(job: Job, workload: Workload, connections: int) -> Memory:
    """Memory of every stage of a valid job.

    Args:
        job: the question.
        workload: its blocks, with what they keep and what they need at once.
        connections: of NCCL that a rank opens (``collectives.price.open_connections``).

    ``reserved`` is an estimate: allocated, the share that fragmentation usually adds, and what was
    freed but serves nothing else yet.
    """
    outside = process_bytes(job.gpu, job.cluster, connections)
    free = 1 - job.cluster.memory_reserve
    capacity = int(job.gpu.memory_bytes * free)
    stages, needed = _stage_memories(job, workload, outside, capacity)
    host = max(host_bytes(job, stage) for stage in distinct(workload.stages))
    host_capacity = int(HostShare.of(job.gpu, job.cluster).memory_bytes * free)
    used = [bytes_ + sum(outside.values()) for bytes_ in needed]
    worst = int(np.argmax(used))
    probability = spread_of(job.framework).probability(used[worst], capacity)
    if host > host_capacity:
        probability = 0.0
    return Memory(
        peak_allocated_bytes=max(stage.peak_allocated_bytes for stage in stages),
        peak_reserved_bytes=max(stage.peak_reserved_bytes for stage in stages),
        capacity_bytes=capacity,
        headroom_bytes=capacity - used[worst],
        worst_stage=worst,
        per_stage=stages,
        fit_probability=probability,
        band=band_of(probability),
        host_bytes=host,
        host_capacity_bytes=host_capacity,
    )


def host_bytes(job: Job, stage: Stage) -> int:
    """What a rank of a stage keeps in its host's memory: optimizer states, and the activations of
    as many micro-batches as a first stage has in flight: one without a pipeline, all where
    forward passes go first, and with several chunks nearly twice as many as there are stages."""
    recipe, copied = job.recipe, sum(chunk.copied_bytes for chunk in stage.chunks)
    flight = job.num_micro_batches if job.schedule == "gpipe" else recipe.pp * min(2, recipe.vpp)
    copied *= min(flight, job.num_micro_batches) if recipe.pp > 1 else 1
    return copied + host_states_bytes(stage.parameters, job)


def process_bytes(gpu: Gpu, cluster: Cluster, connections: int) -> dict[str, int]:
    """What the framework's allocator does not see of a process on such a GPU: buffers of the
    ``connections`` that its communicators opened, and the CUDA context."""
    major, minor = cluster.nccl_version.split("-")[0].split(".")[:2]
    kernels = 0 if (int(major), int(minor)) >= KERNELS_LAZY_SINCE else EAGER_KERNELS_BYTES
    return {
        "communication_buffers": connections * NCCL_CONNECTION_BYTES,
        "context": gpu.architecture.context_bytes + kernels,
    }


def distinct(stages: Iterable[Stage]) -> list[Stage]:
    """Stages without those that are the same again: equal ones are."""
    return list({id(stage): stage for stage in stages}.values())


def _stage_memories(
    job: Job, workload: Workload, outside: dict[str, int], capacity: int
) -> tuple[tuple[StageMemory, ...], list[int]]:
    """Of every stage, and what of the reserved bytes each needs, of which the rest is given back
    where it does not fit."""
    boundary, expands = workload.stage_boundary_bytes, job.framework.expandable_segments
    statics = statics_of(job, workload)
    passes = pass_bytes(job, workload, _enough_micro_batches(job), statics)
    there = passes.activations + passes.temporary
    if any(static.comes_and_goes for static in statics.values()):
        there = there - passes.absent.sum(axis=2)
    worst = there.argmax(axis=1)
    stages = np.arange(len(worst))
    activations = passes.activations[stages, worst].tolist()
    temporary = passes.temporary[stages, worst].tolist()
    absent = passes.absent[stages, worst]
    once = {
        id(stage): (
            statics[id(stage)],
            flattened_bytes(job, stage),
            streamed_bytes(job, stage, statics[id(stage)]),
            gathered_bytes(job, stage),
            vacated_bytes(job, stage, statics[id(stage)]),
            update_bytes(stage.parameters, job),
            router_graph_bytes(job, stage),
        )
        for stage in distinct(workload.stages)
    }
    room = capacity - sum(outside.values())
    memories, needs = list[StageMemory](), list[int]()
    for index, stage in enumerate(workload.stages):
        static, flattened, streamed, gathered, vacated, updating, graphs = once[id(stage)]
        held = held_bytes(job, stage, index, boundary)
        # At a peak that comes before its pass has kept all it keeps, activations are fewer.
        later = min(0, temporary[index] + held)
        activations[index] += graphs
        moving = {
            "activations": activations[index] + later,
            "temporary": temporary[index] + held - later,
        }
        missing = Absent(*absent[index].tolist())
        present = activations[index] + temporary[index] - sum(missing)
        # When the optimizer runs, other activations are free.
        more = graphs + updating - sum(static.absent_at_update) - present
        if more > 0:
            moving = {"activations": graphs, "temporary": updating + held}
            missing, vacated = static.absent_at_update, 0
            # What is flattened is among it.
            flattened = max(0, flattened - more)
        kinds = static.kinds_without(missing) | moving
        allocated = sum(kinds.values())
        unused = flattened + streamed + vacated
        unused += 0 if expands else int(allocated * FRAGMENTATION)
        beyond, cached = cached_bytes(static, gathered, missing, activations[index])
        need = _segments(allocated + unused + beyond)
        cached += pooled_bytes(job, stage, static, present + max(0, more))
        cached += copied_bytes(job, stage, static, missing)
        cached += deferred_bytes(job, stage) if index == 0 else 0
        reserved = need + _segments(cached) * (need + cached < room)
        needs.append(need)
        memories.append(
            StageMemory(
                stage=index,
                kind=kinds | outside,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved,
            )
        )
    return tuple(memories), needs


def router_graph_bytes(job: Job, stage: Stage) -> int:
    """What routers' graphs hold of all layers when a step ends."""
    if not job.framework.keeps_router_graph:
        return 0
    ops = ((run.count, op) for run in stage.runs for op in run.backward.ops)
    return sum(n * op.bytes for n, op in ops if isinstance(op, Alloc) and op.tag == ROUTER_GRAPH)


def _segments(size: int) -> int:
    """Bytes of the segments that hold so many."""
    return -(-size // SEGMENT_BYTES) * SEGMENT_BYTES


def held_bytes(job: Job, stage: Stage, index: int, boundary: int) -> int:
    """What counts as temporary but is held all step: placeholders, workspaces, and where the
    framework allocates them ahead, a buffer of ``boundary`` bytes for every activation and every
    gradient that arrives at stage ``index``."""
    held = scratch_bytes(job, stage)
    if job.framework.pipeline_buffers == "preallocated":
        first, last = index == 0, index == job.recipe.pp - 1
        held += job.num_micro_batches * (2 * job.recipe.vpp - first - last) * boundary
    return held


def scratch_bytes(job: Job, stage: Stage) -> int:
    """Workspaces of matrix products; of Transformer Engine's, one for each stream of experts'
    besides, and what autograd is handed in place of fused weight gradients: a tensor per shape."""
    gpu, framework = job.gpu.architecture, job.framework
    scratch = gpu.workspace_bytes
    if framework.transformer_engine:
        streams = 1 + EXPERT_STREAMS * (stage.parameters.held.expert > 0)
        scratch += streams * gpu.transformer_engine_workspace_bytes
    if framework.fused_wgrad and framework.transformer_engine >= 2:
        scratch += stage.fused_weights * ACTIVATION_BYTES[job.precision]
    return scratch


@dataclass(frozen=True, eq=False, repr=False)
class PassBytes:
    """Bytes along each stage's passes, in its order, each of shape (stages, passes).

    While a pass runs, ``activations`` are those of the passes before it and, in a forward pass,
    its own, and ``temporary`` is what it holds besides at its peak; ``kept`` are the activations
    that it leaves. Stages that run fewer passes than others hold nothing behind them. ``absent``,
    (stages, passes, 2): what of static parameters and gradients is not there at the peak.
    """

    activations: Ints
    temporary: Ints
    kept: Ints
    absent: Ints


def statics_of(job: Job, workload: Workload) -> dict[int, Static]:
    """``static_of`` every stage, by its ``id``."""
    return {id(stage): static_of(job, stage) for stage in distinct(workload.stages)}


def pass_bytes(
    job: Job, workload: Workload, micro_batches: int, statics: Mapping[int, Static]
) -> PassBytes:
    """What the passes of so many micro-batches hold on every stage; ``statics`` as ``statics_of``
    gives them."""
    recipe, last = job.recipe, len(workload.stages) - 1
    places = _places(job.schedule, recipe.pp, recipe.vpp, micro_batches)
    # The result of each pass, where it is not released, stays besides what its blocks save.
    released = job.framework.pipeline_buffers == "released"
    output = 0 if released else workload.stage_boundary_bytes
    keys = [(id(stage), index == last) for index, stage in enumerate(workload.stages)]
    unlike = dict(zip(keys, workload.stages, strict=True))
    number = {key: number for number, key in enumerate(unlike)}
    tables = [
        _chunk_bytes(job, each, 0 if ends else output, statics[id(each)])
        for (_, ends), each in unlike.items()
    ]
    sizes, lacks = (np.array(column) for column in zip(*tables, strict=True))
    rows = np.array([number[key] for key in keys])
    index = places + rows[:, None] * sizes.shape[-1]
    own, besides, change = (sizes[:, of].reshape(-1).take(index) for of in range(3))
    kept = np.cumsum(change, axis=1)
    absent = np.broadcast_to(np.int64(0), (*index.shape, 2))
    if lacks.any():
        absent = lacks.reshape(-1, 2).take(index, axis=0)
    return PassBytes(kept - change + own, besides, kept, absent)


def _chunk_bytes(job: Job, stage: Stage, output: int, static: Static) -> tuple[Ints, Ints]:
    """By kind of pass, none the last, and chunk, shape (3, kinds x chunks): activations of its own
    that a pass holds at its peak, what it holds besides, and by how much it changes activations;
    and what of the static bytes is absent then, shape (kinds x chunks, 2). ``output`` bytes of
    each forward pass stay."""
    chunks = stage.chunks
    sizes = np.zeros((3, KINDS + 1, len(chunks)), dtype=np.int64)
    lacks = np.zeros((KINDS + 1, len(chunks), 2), dtype=np.int64)
    own, peak, change = sizes
    for kind in (FORWARD, BACKWARD):
        peaks = (static.peak(each.held[kind], backward=kind == BACKWARD) for each in chunks)
        peak[kind], lacks[kind] = zip(*peaks, strict=True)
    peak[FORWARD] += output
    change[FORWARD] = [each.saved_bytes + output for each in chunks]
    change[BACKWARD] = -change[FORWARD]
    if schedule_kind(job.schedule).splits_backward:
        waiting = np.array([waiting_bytes(each, job.recipe.tp) for each in chunks], dtype=np.int64)
        peak[INPUT_GRADIENT] = peak[BACKWARD] + waiting
        change[INPUT_GRADIENT] = waiting + change[BACKWARD]
        change[WEIGHT_GRADIENT] = -waiting
    # A forward peak holds what the pass keeps; behind a backward one's, where gradients come, some
    # of that is free.
    own[FORWARD] = change[FORWARD]
    np.minimum(own, peak, out=own)
    peak -= own
    return sizes.reshape(3, -1), lacks.reshape(-1, 2)


@functools.lru_cache(maxsize=32)
def _places(schedule: str, stages: int, chunks: int, micro_batches: int) -> Ints:
    """Where the passes of every stage stand among kinds (none: ``KINDS``) and chunks, shape
    (stages, passes)."""
    orders = [
        stage_order(schedule, stage, stages, chunks, micro_batches)[:2] for stage in range(stages)
    ]
    most = max(order.shape[1] for order in orders)
    places = np.full((stages, most), KINDS * chunks, dtype=np.int64)
    for stage, (kinds, of) in enumerate(orders):
        places[stage, : len(kinds)] = kinds * chunks + of
    return places


def _enough_micro_batches(job: Job) -> int:
    """Micro-batches after which a stage's peak no longer grows."""
    recipe = job.recipe
    if job.schedule != "1f1b":
        return job.num_micro_batches
    # Interleaved warm-up needs at most two rounds of stages per chunk.
    return min(job.num_micro_batches, 3 * recipe.pp)
