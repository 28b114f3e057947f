"""Knobs of what ranks that hold the same shard, and of which communication runs beside kernels."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.knob import (
    BOUNDARY,
    LAYER_BLOCKS,
    STEP_END,
    Canonical,
    knob,
)

_REPLICAS = ("tp", "pp", "cp", "ep", "etp")
_UNSHARED = "there are no replicas to shard over or to reduce among"


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Sharding:
    """What replicas shard, and which communication runs beside kernels."""

    sp: bool = knob(
        False,
        "sp",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        topic="sequence",
        detail_of=("tp",),
        megatron_lm="--sequence-parallel",
        megatron_bridge="model.sequence_parallel",
    )
    """Norms and dropout are sharded along the sequence over the tensor-parallel GPUs."""
    zero_stage: int = knob(
        1,
        "zero{}",
        # Weights are quantised or cast, gradients copied, and hooks run, with passes.
        (LAYER_BLOCKS, STEP_END),
        choices=(0, 1, 2, 3),
        always=True,
        topic="sharding",
        canonical=Canonical(
            _UNSHARED,
            (*_REPLICAS, "framework", "precision", "fp8_param_gather"),
            # FSDP's copies are made even so, DeepSpeed has another optimizer for each stage, and
            # none but sharded ones keep weights that are updated in 8 bits.
            lambda job: (
                not (job.is_replicated or job.gathers_units or job.framework.flattens_gradients)
                and not (
                    job.recipe.zero_stage == 0
                    and job.training.lora is None
                    and job.precision in job.framework.fp8_param_gather
                )
            ),
        ),
        deepspeed="zero_optimization.stage",
    )
    """What data parallelism shards: 1 is Megatron's distributed optimizer, 2 shards gradients too,
    3 is FSDP."""
    dp_shard: int | None = knob(
        None,
        "shard{}",
        (STEP_END,),
        left_out="all",
        topic="sharding",
        detail_of=("zero_stage",),
        canonical=Canonical(
            "it is every replica when left out",
            (*_REPLICAS, "zero_stage"),
            lambda job: job.recipe.dp_shard == job.dp,
        ),
        search=(None, 8, 16, 32, 64, 128),
    )
    """Data-parallel replicas that shards are spread over (with the context-parallel ranks); groups
    of so many hold the same, and sum what they reduced (HSDP). None means all."""
    overlap_grad_reduce: bool = knob(
        False,
        "overlap=grad",
        (STEP_END,),
        topic="sharding",
        canonical=Canonical(
            "what is sharded travels beside the backward pass; " + _UNSHARED,
            (*_REPLICAS, "zero_stage", "framework"),
            # DeepSpeed has two buckets for it, whoever there is to reduce with.
            lambda job: (
                job.recipe.zero_stage >= 2
                or not (job.is_replicated or job.framework.gradient_bucket != "none")
            ),
        ),
    )
    """Gradients are reduced beside the backward pass, as they always are where they are
    sharded."""
    overlap_param_gather: bool = knob(
        False,
        "overlap=param",
        (STEP_END,),
        topic="sharding",
        detail_of=("zero_stage", "overlap_grad_reduce"),
        canonical=Canonical(
            "what is sharded is gathered beside the passes; " + _UNSHARED,
            (*_REPLICAS, "zero_stage", "framework"),
            lambda job: job.gathers_units or not job.is_replicated,
        ),
    )
    """Updated parameters are gathered beside the next forward pass, as they always are where they
    are sharded."""
    optimizer_offload: int = knob(
        0,
        "cpu-optimizer{}%",
        (STEP_END,),
        choices=(0, 25, 50, 75, 100),
        topic="sharding",
        detail_of=("zero_stage",),
    )
    """Percent of the optimizer's states that lie in the host's memory, whose CPU updates what they
    belong to (Megatron-Core's ``optimizer-offload-fraction``, ZeRO-Offload)."""
    tp_comm_overlap: bool = knob(
        False,
        "overlap=tp",
        (LAYER_BLOCKS,),
        topic="sequence",
        detail_of=("tp", "sp"),
        megatron_lm="--tp-comm-overlap",
        megatron_bridge="comm_overlap.tp_comm_overlap",
        torchtitan="--compile.enable-async-tensor-parallel",
    )
    """Tensor-parallel communication is cut up and runs beside its GEMMs."""
    overlap_moe_expert_parallel_comm: bool = knob(
        False,
        "overlap=ep",
        (LAYER_BLOCKS,),
        topic="experts",
        detail_of=("ep",),
        megatron_lm="--overlap-moe-expert-parallel-comm",
        megatron_bridge="comm_overlap.overlap_moe_expert_parallel_comm",
    )
    """One micro-batch's exchange of tokens runs beside another's kernels."""
