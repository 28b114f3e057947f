"""The Megatron-LM command that runs a recipe.

Argument names are those of Megatron-LM's ``megatron/training/arguments.py`` (core 0.13 and
later). Learning rate, data, tokenizer and checkpoints are the user's: the command runs on
mock data as printed.
"""

from __future__ import annotations

import itertools
import math
import shlex
from dataclasses import dataclass

from simulators.job import Job, Model, Recipe

Arguments = list[tuple[str, ...]]

_FP8_RECIPES = {"fp8": "delayed", "fp8_current": "tensorwise", "mxfp8": "mxfp8"}
_GROUPED_GEMM_PRECISIONS = ("bf16", *_FP8_RECIPES)
_MEGATRON_RECOMPUTE_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)
_DISPATCHER: dict[str, Arguments] = {
    "alltoall": [("--moe-token-dispatcher-type", "alltoall")],
    "allgather": [("--moe-token-dispatcher-type", "allgather")],
    "deepep": [("--moe-token-dispatcher-type", "flex"), ("--moe-enable-deepep",)],
}


@dataclass(frozen=True)
class Launch:
    """``arguments`` are groups of one option with its values; ``lacking`` says in words what
    the recipe asks for that Megatron-LM cannot express."""

    environment: dict[str, str]
    torchrun: tuple[tuple[str, ...], ...]
    arguments: tuple[tuple[str, ...], ...]
    lacking: tuple[str, ...]

    def script(self) -> str:
        """A shell script; MASTER_ADDR and NODE_RANK come from the job launcher."""
        lines = ["#!/usr/bin/env bash", "set -euo pipefail"]
        lines += [f"# Not expressible in Megatron-LM: {lack}" for lack in self.lacking]
        lines += [f"export {name}={value}" for name, value in self.environment.items()]
        command = ["torchrun", *(_option(option) for option in self.torchrun)]
        command += ["pretrain_gpt.py", *(_option(option) for option in self.arguments)]
        return "\n".join(lines) + "\n\n" + " \\\n  ".join(command) + "\n"


def _option(words: tuple[str, ...]) -> str:
    # Shell variables stay live; everything else is quoted.
    return " ".join(word if word.startswith('"$') else shlex.quote(word) for word in words)


_NCCL_ALGO = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvls_tree": "NVLSTree"}


def megatron_launch(job: Job) -> Launch:
    """The Megatron-LM launch of a valid job."""
    arguments = (
        _model(job.model, job.sequence_length)
        + _attention(job.model)
        + _multi_token_prediction(job.model)
        + _experts(job)
        + _training(job)
        + _parallelism(job)
        + _recompute(job)
        + _data_parallel(job)
    )
    cluster = job.cluster
    torchrun: Arguments = [
        ("--nnodes", str(cluster.num_nodes)),
        ("--nproc-per-node", str(cluster.gpus_per_node)),
        ("--node-rank", '"${NODE_RANK:-0}"'),
        ("--master-addr", '"${MASTER_ADDR:-localhost}"'),
        ("--master-port", '"${MASTER_PORT:-6000}"'),
    ]
    return Launch(_environment(job), tuple(torchrun), tuple(arguments), _lacking(job))


def _environment(job: Job) -> dict[str, str]:
    # Megatron orders TP/CP communication before the kernels it overlaps by this variable, and
    # refuses to start without it before Blackwell; its FSDP refuses to start with it.
    environment = {}
    if job.network.nccl_algo is not None:
        environment["NCCL_ALGO"] = _NCCL_ALGO[job.network.nccl_algo]
    if job.network.nccl_max_channels is not None:
        environment["NCCL_MAX_NCHANNELS"] = str(job.network.nccl_max_channels)
    ordered = job.recipe.tp > 1 or job.recipe.cp > 1
    if ordered and job.recipe.zero_stage < 2 and job.gpu.compute_capability < 10:
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return environment


def _model(model: Model, sequence_length: int) -> Arguments:
    arguments: Arguments = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden_size)),
        ("--ffn-hidden-size", str(model.ffn_hidden_size)),
        ("--num-attention-heads", str(model.num_heads)),
        ("--seq-length", str(sequence_length)),
        ("--max-position-embeddings", str(max(sequence_length, model.sequence_length))),
        ("--tokenizer-type", "NullTokenizer"),
        # NullTokenizer counts its end-of-document token on top.
        ("--vocab-size", str(model.vocab_size - 1)),
        ("--make-vocab-size-divisible-by", str(model.vocab_multiple)),
        ("--normalization", "RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm"),
        (
            "--position-embedding-type",
            "learned_absolute" if model.position == "learned" else model.position,
        ),
    ]
    if model.gated_mlp:
        arguments.append(("--swiglu",))
    if not model.linear_bias:
        arguments.append(("--disable-bias-linear",))
        if model.qkv_bias:
            arguments.append(("--add-qkv-bias",))
    if not model.tied_embeddings:
        arguments.append(("--untie-embeddings-and-output-weights",))
    if not model.dropout:
        arguments += [("--attention-dropout", "0"), ("--hidden-dropout", "0")]
    return arguments


def _attention(model: Model) -> Arguments:
    arguments: Arguments = []
    if model.qk_norm:
        arguments.append(("--qk-layernorm",))
    if model.mla is not None:
        mla = model.mla
        arguments.append(("--multi-latent-attention",))
        if mla.q_lora_rank is not None:
            arguments.append(("--q-lora-rank", str(mla.q_lora_rank)))
        arguments += [
            ("--kv-lora-rank", str(mla.kv_lora_rank)),
            ("--qk-head-dim", str(mla.qk_nope_head_dim)),
            ("--qk-pos-emb-head-dim", str(mla.qk_rope_head_dim)),
            ("--v-head-dim", str(mla.v_head_dim)),
        ]
    else:
        if model.head_dim is not None:
            arguments.append(("--kv-channels", str(model.head_dim)))
        if model.kv_heads != model.num_heads:
            arguments += [
                ("--group-query-attention",),
                ("--num-query-groups", str(model.kv_heads)),
            ]
    return arguments


def _multi_token_prediction(model: Model) -> Arguments:
    return [("--mtp-num-layers", str(model.num_mtp_layers))] if model.num_mtp_layers else []


def _experts(job: Job) -> Arguments:
    moe = job.model.moe
    if moe is None:
        return []
    arguments: Arguments = [
        ("--num-experts", str(moe.num_experts)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-ffn-hidden-size", str(moe.ffn_hidden_size)),
        *_DISPATCHER[moe.dispatcher],
    ]
    if job.precision in _GROUPED_GEMM_PRECISIONS:
        arguments.append(("--moe-grouped-gemm",))
    if moe.shared_ffn_hidden_size:
        arguments.append(
            ("--moe-shared-expert-intermediate-size", str(moe.shared_ffn_hidden_size))
        )
    if moe.num_dense_layers or moe.layer_period > 1:
        arguments.append(("--moe-layer-freq", _layer_pattern(job.model)))
    if moe.capacity_factor is not None:
        arguments += [
            ("--moe-expert-capacity-factor", str(moe.capacity_factor)),
            ("--moe-pad-expert-input-to-capacity",),
        ]
    return arguments


def _layer_pattern(model: Model) -> str:
    """Megatron's list of which layers have experts, runs of equal layers folded."""
    kinds = [int(model.is_moe_layer(layer)) for layer in range(model.num_layers)]
    runs = (f"[{kind}]*{len(list(run))}" for kind, run in itertools.groupby(kinds))
    return f"({'+'.join(runs)})"


def _training(job: Job) -> Arguments:
    training = job.training
    iterations = max(1, math.ceil(training.tokens / job.tokens_per_step))
    attention = "unfused" if job.attention == "unfused" else "flash"
    arguments: Arguments = [
        ("--micro-batch-size", str(job.recipe.micro_batch)),
        ("--global-batch-size", str(training.global_batch_size)),
        ("--train-iters", str(iterations)),
        ("--mock-data",),
        ("--attention-backend", attention),
    ]
    arguments += _precision(job.precision)
    arguments += _optimizer(job)
    if not job.framework.fused_wgrad:
        arguments.append(("--no-gradient-accumulation-fusion",))
    return arguments


def _precision(precision: str) -> Arguments:
    if precision in _FP8_RECIPES:
        recipe = _FP8_RECIPES[precision]
        return [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", recipe)]
    return [(f"--{precision}",)] if precision in ("bf16", "fp16") else []


def _optimizer(job: Job) -> Arguments:
    training = job.training
    arguments: Arguments = [("--optimizer", "sgd" if training.optimizer == "sgd" else "adam")]
    if training.optimizer == "adam_bf16":
        arguments += [
            ("--use-precision-aware-optimizer",),
            ("--exp-avg-dtype", "bf16"),
            ("--exp-avg-sq-dtype", "bf16"),
        ]
    if job.framework.accumulate_grads_fp32:
        arguments.append(("--accumulate-allreduce-grads-in-fp32",))
    else:
        arguments.append(("--grad-reduce-in-bf16",))
    return arguments


def _parallelism(job: Job) -> Arguments:
    recipe = job.recipe
    arguments: Arguments = [
        ("--tensor-model-parallel-size", str(recipe.tp)),
        ("--pipeline-model-parallel-size", str(recipe.pp)),
        ("--context-parallel-size", str(recipe.cp)),
    ]
    if recipe.cp > 1:
        arguments.append(("--cp-comm-type", recipe.cp_comm_type))
    if recipe.use_tp_pp_dp_mapping:
        arguments.append(("--use-tp-pp-dp-mapping",))
    if job.model.moe is not None:
        arguments += [
            ("--expert-model-parallel-size", str(recipe.ep)),
            ("--expert-tensor-parallel-size", str(job.etp)),
        ]
        if recipe.overlap_moe_expert_parallel_comm:
            arguments.append(("--overlap-moe-expert-parallel-comm",))
    uneven = False
    for name, layers in (
        ("--decoder-first-pipeline-num-layers", recipe.first_stage_layers),
        ("--decoder-last-pipeline-num-layers", recipe.last_stage_layers),
    ):
        if layers is not None:
            uneven = True
            arguments.append((name, str(layers)))
    for flag, given in (
        ("--account-for-embedding-in-pipeline-split", recipe.embedding_as_layer),
        ("--account-for-loss-in-pipeline-split", recipe.loss_as_layer),
    ):
        if given:
            uneven = True
            arguments.append((flag,))
    if recipe.vpp > 1:
        # An uneven split has no single layer count per virtual stage.
        arguments.append(
            ("--num-virtual-stages-per-pipeline-rank", str(recipe.vpp))
            if uneven
            else (
                "--num-layers-per-virtual-pipeline-stage",
                str(job.layers_per_stage[0] // recipe.vpp),
            )
        )
    if recipe.sp:
        arguments.append(("--sequence-parallel",))
    if recipe.tp_comm_overlap:
        arguments.append(("--tp-comm-overlap",))
    return arguments


def _recompute(job: Job) -> Arguments:
    recipe = job.recipe
    if recipe.recompute == "none":
        return []
    if recipe.recompute == "selective":
        chosen: Arguments = [("--recompute-granularity", "selective")]
        modules = _megatron_modules(recipe)
        return chosen + ([("--recompute-modules", *modules)] if modules else [])
    method, layers = ("uniform", 1)
    if recipe.recompute_layers is not None:
        method, layers = ("block", recipe.recompute_layers)
    return [
        ("--recompute-granularity", "full"),
        ("--recompute-method", method),
        ("--recompute-num-layers", str(layers)),
    ]


def _megatron_modules(recipe: Recipe) -> tuple[str, ...]:
    """The modules a recipe recomputes that Megatron-LM has names for; none: its default."""
    named = (recipe.recompute_modules or "").split("+")
    return tuple(module for module in named if module in _MEGATRON_RECOMPUTE_MODULES)


def _data_parallel(job: Job) -> Arguments:
    recipe = job.recipe
    arguments: Arguments = []
    if recipe.zero_stage >= 1:
        arguments.append(("--use-distributed-optimizer",))
    if recipe.zero_stage >= 2:
        sharding = "optim_grads" if recipe.zero_stage == 2 else "optim_grads_params"
        arguments += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", sharding),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    # Megatron accepts the parameter-gather overlap only beside the gradient overlap.
    if recipe.overlap_grad_reduce:
        arguments.append(("--overlap-grad-reduce",))
        if recipe.overlap_param_gather:
            arguments.append(("--overlap-param-gather",))
            if recipe.vpp > 1:
                # All stages gather a chunk's parameters at once, as is predicted; without it each
                # begins when its first micro-batch arrives.
                arguments.append(("--align-param-gather",))
    return arguments


def _lacking(job: Job) -> tuple[str, ...]:
    recipe = job.recipe
    lacking = []
    if recipe.schedule == "gpipe" and recipe.pp > 1:
        lacking.append("schedule=gpipe (Megatron-LM runs 1F1B)")
    if recipe.recompute_taper:
        lacking.append("recompute_taper (Megatron-LM recomputes as many layers on every stage)")
    if recipe.overlap_param_gather and not recipe.overlap_grad_reduce:
        lacking.append("overlap_param_gather without overlap_grad_reduce")
    unnamed = set((recipe.recompute_modules or "core_attn").split("+")).difference(
        _MEGATRON_RECOMPUTE_MODULES
    )
    if unnamed:
        lacking.append(f"recompute_modules={'+'.join(sorted(unnamed))}")
    if job.precision == "tf32":
        lacking.append("precision=tf32 (set torch.backends.cuda.matmul.allow_tf32 in the script)")
    if job.attention != "unfused" and job.precision in ("fp32", "tf32"):
        lacking.append(
            f"attention=flash in {job.precision} (FlashAttention 2 needs bf16 or fp16; "
            "framework.attention=unfused runs everywhere)"
        )
    if job.model.moe is not None and job.precision not in _GROUPED_GEMM_PRECISIONS:
        lacking.append(f"grouped GEMM in {job.precision} (Megatron-LM has it for bf16 models)")
    return tuple(lacking)
