"""Knobs of how the model and its work are cut over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.knob import (
    BOUNDARY,
    LAYER_BLOCKS,
    LAYOUT,
    MICRO_BATCHES,
    STEP_END,
    Canonical,
    knob,
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Parallelism:
    """How a job is cut over GPUs."""

    tp: int = knob(
        1,
        "tp{}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END, MICRO_BATCHES),
        always=True,
        search={"powers_of_two_up_to": "nvlink_domain"},
        megatron_lm="--tensor-model-parallel-size",
        megatron_bridge="model.tensor_model_parallel_size",
        torchtitan="--parallelism.tensor-parallel-degree",
    )
    """GPUs that share each layer's matrices (tensor parallelism)."""
    pp: int = knob(
        1,
        "pp{}",
        (LAYOUT, BOUNDARY, MICRO_BATCHES),
        always=True,
        search={"divisors_of": "num_gpus"},
        megatron_lm="--pipeline-model-parallel-size",
        megatron_bridge="model.pipeline_model_parallel_size",
        torchtitan="--parallelism.pipeline-parallel-degree",
    )
    """Pipeline stages."""
    cp: int = knob(
        1,
        "cp{}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END, MICRO_BATCHES),
        topic="context",
        search=(1, 2, 4, 8, 16, 32),
        megatron_lm="--context-parallel-size",
        megatron_bridge="model.context_parallel_size",
        torchtitan="--parallelism.context-parallel-degree",
    )
    """GPUs that share each sequence (context parallelism)."""
    cp_comm_type: str = knob(
        "p2p",
        "{}",
        (LAYER_BLOCKS, STEP_END),
        choices=("p2p", "all_gather", "a2a"),
        topic="context",
        detail_of=("cp",),
        canonical=Canonical(
            "without context parallelism nothing is exchanged",
            ("cp",),
            lambda job: job.recipe.cp == 1,
        ),
        megatron_lm="--cp-comm-type",
        megatron_bridge="model.cp_comm_type",
    )
    """How context parallelism attends: keys and values are passed around a ring (``p2p``) or all
    gathered (``all_gather``), or sequence shards exchanged for head shards (``a2a``, Jacobs et al.
    2023)."""
    ep: int = knob(
        1,
        "ep{}",
        (LAYER_BLOCKS, STEP_END),
        topic="experts",
        search={"divisors_of": ["num_experts", "num_gpus"]},
        megatron_lm="--expert-model-parallel-size",
        megatron_bridge="model.expert_model_parallel_size",
        torchtitan="--parallelism.expert-parallel-degree",
    )
    """GPUs that share the experts of a layer."""
    etp: int | None = knob(
        None,
        "etp{}",
        (LAYER_BLOCKS, STEP_END),
        left_out="tp",
        topic="experts",
        detail_of=("tp", "ep"),
        canonical=Canonical(
            "it is tp when left out", ("tp",), lambda job: job.recipe.etp == job.recipe.tp
        ),
        search=(None, 1),
        megatron_lm="--expert-tensor-parallel-size",
        megatron_bridge="model.expert_tensor_parallel_size",
    )
    """Tensor-parallel degree of experts; None means ``tp``."""
    vpp: int = knob(
        1,
        "vpp{}",
        (LAYOUT,),
        detail_of=("pp",),
        search=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 20),
    )
    """Chunks of layers that a stage has (virtual pipeline stages)."""
    micro_batch: int = knob(
        1,
        "mb{}",
        (LAYER_BLOCKS, BOUNDARY, MICRO_BATCHES),
        always=True,
        search={"divisors_of": "global_batch_size", "up_to": [32, "pooled_batch"]},
        megatron_lm="--micro-batch-size",
        megatron_bridge="train.micro_batch_size",
        deepspeed="train_micro_batch_size_per_gpu",
    )
    """Sequences that a pass takes at once."""
