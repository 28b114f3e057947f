"""What PyTorch's allocator has reserved at a peak and cannot use there: places that were freed but
are too small for what comes, or not free yet."""

from __future__ import annotations

import itertools
from dataclasses import replace

from trainscout.simulators.predictor.question.framework_choices import EAGER_LOSSES
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Collective,
    Free,
    Gemm,
    HostSync,
    SendRecv,
    Streaming,
)
from trainscout.simulators.predictor.workload.program import Stage
from trainscout.simulators.predictor.workload.schedules.passes import BACKWARD
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    gradient_bytes_per_parameter,
)
from trainscout.simulators.predictor.workload.weights.step_end import (
    DEEPSPEED_SUB_GROUP,
    host_parameters,
    moment_bytes,
    owned_parameters,
)
from trainscout.simulators.predictor.workload.weights.weights import parameter_bytes

from .static import (
    DEEPSPEED_BUCKET,
    Absent,
    Static,
    end_parameters,
    gradient_bucket_bytes,
    largest_layer,
)

# Launches that a stream takes before it blocks the host (seen: stackoverflow.com/q/53970187). A
# collective is its kernel, and an event recorded and waited for on either side of it.
QUEUED_LAUNCHES = 1000
COLLECTIVE_LAUNCHES = 5


def cached_bytes(
    static: Static, gathered: int, missing: Absent, activations: int
) -> tuple[int, int]:
    """Of what is ``gathered``, bytes that no place takes at a peak where ``activations`` are there
    and that is missing; and places that are given back where they do not fit."""
    # As much goes where activations and gradients that come and go were.
    going = static.gradients - missing.gradients if static.made else 0
    cached = min(gathered, activations + going)
    beyond = gathered - cached
    return beyond, cached


def pooled_bytes(job: Job, stage: Stage, static: Static, there: int) -> int:
    """What finds no place of other tensors, where a peak has ``there`` bytes of passes.

    FSDP's shards of gradients have places of a stream's own; DeepSpeed's bucket needs one where
    it comes with gradients and is larger than the fp32 logits that went by then. All other places
    are those of the pass that takes most of them.
    """
    apart = _shards_units(job)
    late = static.late > 0 and not job.framework.expandable_segments
    late = late and DEEPSPEED_BUCKET * parameter_bytes(job) > _fp32_logits(stage)
    if not ((apart or late) and job.recipe.pp == 1):
        return 0
    others = replace(static, made=0) if apart else replace(static, late=0)
    forward, backward = stage.chunks[0].held
    peaks = (others.peak(forward, backward=False), others.peak(backward, backward=True))
    kept = (0, stage.chunks[0].saved_bytes)
    most = max(before + held - sum(gone) for before, (held, gone) in zip(kept, peaks, strict=True))
    more = max(0, most - there)
    # Under ZeRO 2 gradients of a layer are among them, which lie elsewhere.
    shards = owned_parameters(stage.parameters, job) * 4
    return min(more, shards) if apart and job.recipe.zero_stage == 2 else more


def flattened_bytes(job: Job, stage: Stage) -> int:
    """DeepSpeed's tensors at the end of a step, which take segments of their own: activations are
    free by then, but as blocks too small for these.

    The BF16 optimizer has its fp32 gradients in one tensor, and reduces all of it as a 16-bit copy
    (``allreduce_bucket``: ``tensor.to(communication_data_type)``). 16-bit gradients are reduced in
    a bucket. Of each tensor's part in the rank's partition, fp16 ones are looked through for
    overflow as an fp32 copy, and all normed as an fp64 one; then the partition is flattened, and
    that copied to fp32 (``stage_1_and_2.py``: ``step``), in ZeRO 3 so many elements at a time as
    are updated (``stage3.py``: ``_prepare_fp32_grad_for_sub_group``). One takes the place of
    another that is free again where it fits.
    """
    if not job.framework.flattens_gradients:
        return 0
    parameters, zero = stage.parameters, job.recipe.zero_stage
    size, weight = gradient_bytes_per_parameter(job), parameter_bytes(job)
    if size > weight and zero < 2:
        return parameters.total * weight
    # Without a pipeline it is among what is allocated.
    there = zero and gradient_bucket_bytes(job)
    tensors = [0 if there else min(DEEPSPEED_BUCKET, parameters.total) * size]
    if size < 4:
        owned = owned_parameters(parameters, job)
        here = owned - host_parameters(owned, job)
        if zero in (1, 2):
            part = min(_largest_gradient(stage), here)
            tensors += [4 * part] if job.precision == "fp16" else []
            tensors += [8 * part, size * here]
        tensors.append(4 * (min(here, DEEPSPEED_SUB_GROUP) if zero == 3 else here))
    before = itertools.accumulate(tensors, max, initial=0)
    return sum(each for each, most in zip(tensors, before, strict=False) if each > most)


def streamed_bytes(job: Job, stage: Stage, static: Static) -> int:
    """What FSDP2 gathers into, on a stream of its own whose places serve no other
    (``foreach_all_gather``), before each weight is copied out: of the model's ends, which are one
    unit, and the layer that is fetched beside them, or of two layers.

    Four layers on eight virtual GPUs reserve 0.8 to 3.0 GB more than they allocate, of which this
    is 36 to 52 %. Under ZeRO 2, too: TorchTitan 0.2.2's Llama 3 8B on 16 virtual GPUs takes 1.48
    GiB so, and 1.88 for shards of gradients.
    """
    if not _gathers_apart(job):
        return 0
    layers, ends = static.layers, static.ends
    if job.recipe.zero_stage == 2:
        layers = 2 * largest_layer(stage) * parameter_bytes(job)
        ends = end_parameters(job, stage) * parameter_bytes(job)
    return max(ends + layers // 2, layers)


def copied_bytes(job: Job, stage: Stage, static: Static, missing: Absent) -> int:
    """What the first FSDP copies gradients of its largest unit to, to be reduced in fp32, on a
    stream of its own whose places serve no other (``_post_backward_stream``): where a peak misses
    layers, none of it is in use."""
    framework = job.framework
    in_fp32 = framework.reduce_grads_fp32 or framework.accumulate_grads_fp32
    if framework.copies_gathered or not (in_fp32 and _shards_units(job) and job.recipe.pp == 1):
        return 0
    unit = max(largest_layer(stage, trained=True), *_trained_ends(job, stage))
    return max(0, 4 * unit - static.copies * (missing.parameters == 0))


def _trained_ends(job: Job, stage: Stage) -> list[int]:
    ends = [run.parameters.total for run in stage.runs if not run.is_layer]
    return [sum(ends)] if job.joins_ends else [0, *ends]


def _shards_units(job: Job) -> bool:
    """Whether FSDP shards, which reduces on a stream of its own."""
    return job.framework.torch_wrappers and job.gathers_units and job.is_replicated


def _gathers_apart(job: Job) -> bool:
    """Whether FSDP2 does, which gathers on one, too."""
    return job.framework.copies_gathered and _shards_units(job)


def gathered_bytes(job: Job, stage: Stage) -> int:
    """nanotron's weights at the end of a step under ZeRO 1 (``all_gather_coalesced``), flat:
    activations are free by then, but in places too small.

    All are one tensor that NCCL gathers into, as many again the shares that they are copied to,
    and a share is sent. Shares no larger than an activation that was kept take places of such, so
    that more may be reserved of smaller activations. Moments, made as the first step ends, took
    others, whose successors are cut from these tensors.

    The Ultra-Scale sweep errs 3.3 % (90 % within 13.1), 3.6 (14.2) were as many shares to find
    places as one pass keeps activations that hold them, and 4.0 (16.0) if none did.
    """
    if not (job.framework.copies_shards and job.recipe.zero_stage == 1 and job.dp > 1):
        return 0
    weights = stage.parameters.total * parameter_bytes(job)
    share = weights // job.dp
    kept = (op.bytes for run in stage.runs for op in run.forward.ops if isinstance(op, Alloc))
    shares = weights if share > max(kept, default=0) else 0
    return max(0, weights + shares + share - moment_bytes(stage.parameters, job))


def vacated_bytes(job: Job, stage: Stage, static: Static) -> int:
    """What 16-bit logits leave unused at the peak of PyTorch's loss on their fp32 copy.

    Behind them lie the copy and its log-softmax. Of the two gradients as large, one takes the
    copy's place; the other is too large for that of the logits, whether segments expand or not.
    Where a stage's peak is elsewhere by so much, they add nothing. Three readings of TorchTitan's
    Llama-3-8B err 3.3 % with it (5.9 without); a loop over Qwen2 of Transformers on virtual GPUs
    leaves 1.1 to 1.6 GiB more unused (2,048 to 8,192 tokens).
    """
    if job.framework.cross_entropy not in EAGER_LOSSES or job.precision in ("fp32", "tf32"):
        return 0
    most = 0
    for chunk in stage.chunks:
        for run in chunk.runs:
            moved = (op for op in run.forward.ops if isinstance(op, Streaming))
            logits = sum(op.bytes // 3 for op in moved if op.name == "logits_cast")
            peak, absent = static.peak(chunk.held[BACKWARD], backward=True)
            elsewhere = peak - run.backward.peak_bytes + sum(static.most_absent) - sum(absent)
            most = max(most, logits - max(0, elsewhere))
    return most


def deferred_bytes(job: Job, stage: Stage) -> int:
    """What communication of the first stage's forward passes holds and nothing else keeps, while
    the host runs ahead of the device: what collectives read, where the framework has it deferred,
    and what is sent on around a ring, which PyTorch defers always (``record_stream`` in
    ``ProcessGroupNCCL::pointToPoint``).

    A stage without a pipeline runs ahead by a forward pass: its device, not its host, is taken to
    be behind. In a pipeline a host waits for each message that it receives. The first stage
    receives none before its warm-up is over, and its device waits to send the second result until
    the next stage's first pass, which starts everything there, has ended: the passes behind that
    pile up.
    """
    recipe, defers = job.recipe, job.framework.defers_frees
    if not (defers or recipe.cp > 1):
        return 0
    passes = 1
    if recipe.pp > 1:
        started = job.num_micro_batches
        passes = (started if job.schedule == "gpipe" else min(recipe.pp, started)) - 2
    read = launches = 0
    for run in stage.runs:
        for op in run.forward.ops:
            if isinstance(op, Collective):
                launches += run.count * COLLECTIVE_LAUNCHES
                read += run.count * op.bytes * (defers and op.kind != "all_gather")
            elif isinstance(op, SendRecv):
                launches += run.count * COLLECTIVE_LAUNCHES * (1 + op.paired)
                read += run.count * op.bytes
            elif not isinstance(op, Alloc | Free | HostSync):
                launches += run.count * (op.launches if isinstance(op, Streaming) else 1)
    return int(read * min(max(0, passes), QUEUED_LAUNCHES / launches))


def _largest_gradient(stage: Stage) -> int:
    """Elements of a stage's largest gradient: of what is at its ends, or of a layer's matrix."""
    ends = [run.parameters.total for run in stage.runs if not run.is_layer]
    ops = (op for run in stage.runs for op in run.backward.ops)
    products = [op.m * op.n for op in ops if isinstance(op, Gemm) and op.layout == "NT"]
    return max(ends + products, default=0)


def _fp32_logits(stage: Stage) -> int:
    """Bytes of the fp32 copy of a stage's logits."""
    moved = (op for run in stage.runs for op in run.forward.ops if isinstance(op, Streaming))
    return int(max((op.bytes * 2 / 3 for op in moved if op.name == "logits_cast"), default=0))
