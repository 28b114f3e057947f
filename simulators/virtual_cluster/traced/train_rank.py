"""Trains a declared job on Megatron-Core, as one rank of it: a script like any other.

It reads torchrun's environment variables. The loop is Megatron-LM's (``training.py: train,
train_step``). Every rank makes its own tokens: nothing is read or broadcast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layout import format_layout
from trainscout.simulators.predictor.workload.communicators import spans
from trainscout.simulators.predictor.workload.megatron import layers_by_stage

from . import megatron_job
from .layer_spec import LayerSpec, whole_model


def train(job: Job, micro_batches: Sequence[int]) -> None:
    """Run steps of so many micro-batches each."""
    spec, recipe = whole_model(job), job.recipe
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    megatron_job.join_ranks(
        spec,
        pipeline_model_parallel_size=recipe.pp,
        virtual_pipeline_model_parallel_size=recipe.vpp if recipe.vpp > 1 else None,
        order="tp-cp-ep-pp-dp" if recipe.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        use_sharp=job.cluster.sharp,
    )
    config = megatron_job.transformer_config(spec, **_pipeline(job))
    chunks = _chunks(job, spec, config)
    optimizer = _optimizer(job, config, chunks)
    _connect(config, chunks, optimizer)
    gather = config.param_sync_func
    if gather is not None:
        # The first step has nothing to gather.
        config.param_sync_func = None
        for chunk in chunks:
            chunk.disable_forward_pre_hook(param_sync=False)
    data: Any = [iter(partial(megatron_job.token_tensors, spec), None) for _ in chunks]
    run = get_forward_backward_func()
    for step, count in enumerate(micro_batches):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        run(
            forward_step_func=_forward_step,
            data_iterator=data if len(chunks) > 1 else data[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=count,
            seq_length=job.sequence_length,
            micro_batch_size=recipe.micro_batch,
            forward_only=False,
        )
        optimizer.step()
        if gather is not None and step == 0:
            config.param_sync_func = gather
            for chunk in chunks:
                chunk.enable_forward_pre_hook()


def _pipeline(job: Job) -> dict[str, Any]:
    recipe = job.recipe
    interleaved = recipe.vpp > 1
    settings: dict[str, Any] = {
        "pipeline_model_parallel_size": recipe.pp,
        "virtual_pipeline_model_parallel_size": recipe.vpp if interleaved else None,
        "overlap_p2p_comm": interleaved and job.framework.overlap_p2p,
        "batch_p2p_comm": not (interleaved and job.framework.overlap_p2p),
        "batch_p2p_sync": job.framework.p2p_sync,
        "num_layers_in_first_pipeline_stage": recipe.first_stage_layers,
        "num_layers_in_last_pipeline_stage": recipe.last_stage_layers,
        "account_for_embedding_in_pipeline_split": recipe.embedding_as_layer,
        "account_for_loss_in_pipeline_split": recipe.loss_as_layer,
        "pipeline_model_parallel_layout": recipe.pipeline_layout
        and format_layout(job.layers_per_chunk, job.model.num_mtp_layers),
    }
    if recipe.recompute == "full":
        layers = job.recomputed_layers(_stage(job))
        settings["recompute_num_layers"] = job.largest_chunk if layers is None else layers
    return settings


def _stage(job: Job) -> int:
    """The pipeline stage of this rank."""
    ((stages, apart),) = spans(job)["pp"]
    return int(torch.distributed.get_rank() // apart % stages)


def _chunks(job: Job, spec: LayerSpec, config: TransformerConfig) -> list[DistributedDataParallel]:
    """The model chunks of this rank's stage."""
    recipe, model = job.recipe, job.model
    stage = _stage(job)
    chunks = []
    for index, (start, stop) in enumerate(layers_by_stage(job)[stage]):
        ends: dict[str, bool] = {
            "pre_process": stage == 0 and index == 0,
            "post_process": stage == recipe.pp - 1 and index == recipe.vpp - 1,
            "share_embeddings_and_output_weights": model.tied_embeddings,
        }
        built = (
            megatron_job.gpt_model(
                spec,
                config,
                [model.is_moe_layer(layer) for layer in range(start, stop)],
                vp_stage=index if recipe.vpp > 1 else None,
                **ends,
            )
            if model.is_plain
            else megatron_job.hybrid_model(spec, config, **ends)
        )
        chunks.append(
            megatron_job.replicated(
                spec,
                config,
                Float16Module(config, built.cuda(torch.cuda.current_device())),
                later=index > 0,
                use_distributed_optimizer=recipe.zero_stage == 1,
                overlap_grad_reduce=recipe.overlap_grad_reduce,
                overlap_param_gather=recipe.overlap_param_gather,
            )
        )
    return chunks


def _optimizer(job: Job, config: TransformerConfig, chunks: list[DistributedDataParallel]) -> Any:
    halved = job.optimizer == "adam_bf16"
    moments = torch.bfloat16 if halved else torch.float32
    options = OptimizerConfig(
        optimizer="sgd" if job.optimizer == "sgd" else "adam",
        lr=1e-4,
        clip_grad=1.0,
        fp16=config.fp16,
        bf16=config.bf16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=job.recipe.zero_stage == 1,
        overlap_param_gather=job.recipe.overlap_param_gather,
        use_precision_aware_optimizer=halved or job.recipe.optimizer_states is not None,
        exp_avg_dtype=moments,
        exp_avg_sq_dtype=moments,
    )
    return get_megatron_optimizer(options, chunks, use_gloo_process_groups=False)


def _connect(
    config: TransformerConfig, chunks: list[DistributedDataParallel], optimizer: Any
) -> None:
    """What the schedule calls, as ``training.py: train`` sets it."""
    one = len(chunks) == 1
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if chunks[0].ddp_config.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in chunks]
        start = [chunk.start_grad_sync for chunk in chunks]
        config.no_sync_func = no_sync[0] if one else no_sync
        config.grad_sync_func = start[0] if one else start
    if chunks[0].ddp_config.overlap_param_gather:
        gather = [chunk.start_param_sync for chunk in chunks]
        config.param_sync_func = gather[0] if one else gather


def _forward_step(data: Iterator[dict[str, torch.Tensor]], model: Any) -> tuple[torch.Tensor, Any]:
    batch = next(data)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(megatron_job.masked_loss, batch["loss_mask"])
