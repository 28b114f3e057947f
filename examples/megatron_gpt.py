"""GPT with Megatron-core: its model, pipeline schedules, DDP and distributed optimizer.

torchrun --nproc-per-node 8 examples/megatron_gpt.py --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from torch import Tensor


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-layers", type=int, default=24)
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--num-attention-heads", type=int, default=16)
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=51200)
    parser.add_argument("--num-experts", type=int)
    parser.add_argument("--moe-router-topk", type=int, default=2)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--train-iters", type=int, default=3)
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--virtual-pipeline-model-parallel-size", type=int)
    parser.add_argument("--expert-model-parallel-size", type=int, default=1)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--recompute-granularity", choices=["selective", "full"])
    parser.add_argument("--use-distributed-optimizer", action="store_true")
    parser.add_argument("--overlap-grad-reduce", action="store_true")
    parser.add_argument("--overlap-param-gather", action="store_true")
    parser.add_argument("--transformer-impl", choices=["local", "transformer_engine"])
    parser.set_defaults(transformer_impl="transformer_engine")
    return parser.parse_args()


def transformer_config(args: argparse.Namespace) -> TransformerConfig:
    full = args.recompute_granularity == "full"
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_moe_experts=args.num_experts,
        moe_router_topk=args.moe_router_topk,
        moe_token_dispatcher_type="alltoall",
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        sequence_parallel=args.sequence_parallel,
        recompute_granularity=args.recompute_granularity,
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        bf16=True,
        add_bias_linear=args.num_experts is None,
        bias_activation_fusion=args.num_experts is None,
        bias_dropout_fusion=True,
        masked_softmax_fusion=True,
        attention_softmax_in_fp32=True,
        gradient_accumulation_fusion=True,
    )


def build_model(
    args: argparse.Namespace, config: TransformerConfig
) -> list[DistributedDataParallel]:
    """The chunks of this pipeline stage, one without interleaving."""
    if args.transformer_impl == "local":
        spec = get_gpt_layer_local_spec(num_experts=args.num_experts)
    else:
        spec = get_gpt_layer_with_transformer_engine_spec(num_experts=args.num_experts)
    sharing = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=args.use_distributed_optimizer,
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
    )
    virtual = args.virtual_pipeline_model_parallel_size
    chunks = []
    for number in range(virtual or 1):
        stage = number if virtual else None
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=args.vocab_size,
            max_sequence_length=args.seq_length,
            pre_process=parallel_state.is_pipeline_first_stage(False, stage),
            post_process=parallel_state.is_pipeline_last_stage(False, stage),
            vp_stage=stage,
        )
        model = Float16Module(config, model.cuda(torch.cuda.current_device()))
        chunks.append(
            DistributedDataParallel(
                config, sharing, model, disable_bucketing=number > 0 and args.overlap_param_gather
            )
        )
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce:
        no_sync: list[Callable] = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = no_sync if virtual else no_sync[0]
    return chunks


def batches(args: argparse.Namespace) -> Iterator[dict[str, Tensor]]:
    """Random tokens, the same for all ranks of one model replica."""
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    size = (args.micro_batch_size, args.seq_length + 1)
    positions = torch.arange(args.seq_length).expand(args.micro_batch_size, -1).cuda()
    while True:
        tokens = torch.randint(args.vocab_size, size, generator=generator).cuda()
        yield {"input_ids": tokens[:, :-1], "position_ids": positions, "labels": tokens[:, 1:]}


def forward_step(data: Iterator[dict[str, Tensor]], model: torch.nn.Module):
    batch = next(data)
    losses = model(**batch, attention_mask=None)
    return losses, partial(mean_loss)


def mean_loss(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = losses.float().mean()
    return loss, {"lm loss": loss.detach()}


def flops_per_iteration(args: argparse.Namespace) -> float:
    """Forward and backward, without recomputation (Narayanan et al. 2021, appendix)."""
    hidden, mlps = args.hidden_size, args.moe_router_topk if args.num_experts else 1
    layer = (8 + 16 * mlps) * hidden**2 + 4 * args.seq_length * hidden
    head = 2 * hidden * args.vocab_size
    return 3.0 * args.global_batch_size * args.seq_length * (args.num_layers * layer + head)


def main() -> None:
    args = parse_arguments()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group("nccl")
    world_size = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(123)

    config = transformer_config(args)
    model = build_model(args, config)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            bf16=True,
            params_dtype=torch.bfloat16,
            clip_grad=1.0,
            use_distributed_optimizer=args.use_distributed_optimizer,
            overlap_param_gather=args.overlap_param_gather,
        ),
        model,
        use_gloo_process_groups=False,
    )
    data = [batches(args) for _ in model]
    replicas = parallel_state.get_data_parallel_world_size()
    micro_batches = args.global_batch_size // (args.micro_batch_size * replicas)
    run = get_forward_backward_func()
    # Losses are on the last stage; one of its ranks speaks.
    here = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(),
    )
    speaks = parallel_state.is_pipeline_last_stage() and here == (0, 0)

    for iteration in range(1, args.train_iters + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run(
            forward_step_func=forward_step,
            data_iterator=data if len(data) > 1 else data[0],
            model=model,
            num_microbatches=micro_batches,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            forward_only=False,
        )
        _, norm, _ = optimizer.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if speaks:
            loss = torch.stack([step["lm loss"] for step in losses]).mean().item()
            print(
                f"iteration {iteration}: {1e3 * seconds:.1f} ms, "
                f"{flops_per_iteration(args) / seconds / world_size / 1e12:.1f} TFLOP/s/GPU, "
                f"{args.global_batch_size * args.seq_length / seconds / world_size:,.0f} "
                f"tokens/s/GPU, peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, "
                f"loss {loss:.3f}, grad norm {norm:.3f}"
            )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
