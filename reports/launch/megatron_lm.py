"""The Megatron-LM command that runs a recipe.

Argument names are those of Megatron-LM's ``megatron/training/arguments.py`` (core 0.13 and
later). Data, tokenizer and learning rate are the user's: the command runs on mock data as
printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainscout.reports.launch import megatron_core
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import (
    RESUME,
    Arguments,
    not_expressible,
    resumed,
    shared_environment,
    shell_script,
    title_lines,
)
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model

TITLE = "Megatron-LM"
_FILL_IN = (
    "settings that no speed depends on (--lr, --rotary-base)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "data and tokenizer (--mock-data, --tokenizer-type)",
)
_DISPATCHER: dict[str, Arguments] = {
    "alltoall": [("--moe-token-dispatcher-type", "alltoall")],
    "allgather": [("--moe-token-dispatcher-type", "allgather")],
    "deepep": [("--moe-token-dispatcher-type", "flex"), ("--moe-enable-deepep",)],
}


@dataclass(frozen=True)
class MegatronCommand:
    """``arguments`` are groups of one option with its values; ``unsupported`` says in words what
    the recipe asks for that Megatron-LM cannot express, ``impossible`` why it would not start."""

    job: Job
    environment: dict[str, str]
    arguments: tuple[tuple[str, ...], ...]
    unsupported: tuple[str, ...]
    impossible: tuple[str, ...]

    def script(self) -> str:
        """A shell script to run in a checkout of Megatron-LM, on every node."""
        header = [
            *title_lines(self.job),
            "Runs in a checkout of Megatron-LM (core 0.13 or later).",
            "Fill in: " + "; ".join(_FILL_IN),
            *not_expressible(TITLE, self.unsupported),
            *(f"Megatron-LM refuses this: {reason}" for reason in self.impossible),
        ]
        checkpoints = (
            '--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval "${SAVE_INTERVAL:-500}"'
        )
        program = [("pretrain_gpt.py",), *self.arguments, (RESUME,)]
        return shell_script(header, self.environment, resumed(checkpoints), self.job, program)


def megatron_launch(job: Job) -> MegatronCommand:
    """The Megatron-LM command of a valid job."""
    arguments = (
        _model(job.model, job.sequence_length)
        + _attention(job.model)
        + _multi_token_prediction(job.model)
        + _experts(job)
        + _training(job)
        + _parallelism(job)
        + _pipeline_split(job)
        + _recompute(job)
        + _data_parallel(job)
    )
    return MegatronCommand(
        job,
        megatron_core.environment(job) | shared_environment(job),
        tuple(arguments),
        megatron_core.unsupported(job),
        megatron_core.impossible(job) + _refused(job),
    )


def launch(job: Job) -> Launch:
    """The files that launch a valid job under Megatron-LM."""
    command = megatron_launch(job)
    files = {} if command.impossible else {"megatron_lm.sh": command.script()}
    return Launch("megatron_lm", TITLE, files, command.unsupported, _FILL_IN, command.impossible)


def _refused(job: Job) -> tuple[str, ...]:
    """What ``validate_args`` of Megatron-LM refuses and Megatron-Core does not."""
    reasons = []
    if job.precision == "fp16" and job.recipe.ep > 1:
        reasons.append("ep > 1 in fp16")
    if job.model.num_mtp_layers and job.model.position == "learned":
        reasons.append("multi-token prediction with learned positions")
    return tuple(reasons)


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
    if megatron_core.query_key_norm(model):
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
    if megatron_core.grouped_gemm(job):
        arguments.append(("--moe-grouped-gemm",))
    if moe.shared_ffn_hidden_size:
        arguments.append(
            ("--moe-shared-expert-intermediate-size", str(moe.shared_ffn_hidden_size))
        )
    if moe.num_dense_layers or moe.layer_period > 1:
        arguments.append(("--moe-layer-freq", megatron_core.layer_pattern(job.model)))
    if moe.capacity_factor is not None:
        arguments += [
            ("--moe-expert-capacity-factor", str(moe.capacity_factor)),
            ("--moe-pad-expert-input-to-capacity",),
        ]
    return arguments


def _training(job: Job) -> Arguments:
    training = job.training
    iterations = max(1, math.ceil(training.tokens / job.tokens_per_step))
    arguments: Arguments = [
        ("--micro-batch-size", str(job.recipe.micro_batch)),
        ("--global-batch-size", str(training.global_batch_size)),
        ("--train-iters", str(iterations)),
        # Megatron has no default, and stops without one.
        ("--lr", "1e-4"),
        ("--mock-data",),
        ("--attention-backend", megatron_core.attention_backend(job)),
    ]
    arguments += _precision(job.precision)
    arguments += _optimizer(job)
    if megatron_core.loss_in_place(job):
        arguments += [("--cross-entropy-loss-fusion",), ("--cross-entropy-fusion-impl", "te")]
    if job.framework.fused_router and job.model.moe is not None:
        arguments.append(("--moe-router-fusion",))
    if not job.framework.fused_wgrad:
        arguments.append(("--no-gradient-accumulation-fusion",))
    return arguments


def _precision(precision: str) -> Arguments:
    if precision in megatron_core.FP8:
        recipe, number_format = megatron_core.FP8[precision]
        return [("--bf16",), ("--fp8-format", number_format), ("--fp8-recipe", recipe)]
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
    if recipe.use_tp_pp_dp_mapping and recipe.pp > 1:
        arguments.append(("--use-tp-pp-dp-mapping",))
    if job.model.moe is not None:
        arguments += [
            ("--expert-model-parallel-size", str(recipe.ep)),
            ("--expert-tensor-parallel-size", str(job.etp)),
        ]
        if recipe.overlap_moe_expert_parallel_comm:
            arguments.append(("--overlap-moe-expert-parallel-comm",))
    if recipe.sp:
        arguments.append(("--sequence-parallel",))
    if recipe.tp_comm_overlap:
        arguments.append(("--tp-comm-overlap",))
    return arguments


def _pipeline_split(job: Job) -> Arguments:
    recipe = job.recipe
    if recipe.pp == 1:
        return []
    arguments: Arguments = []
    if not megatron_core.layers_fit_plain_arguments(job):
        arguments.append(("--pipeline-model-parallel-layout", megatron_core.layout(job)))
    else:
        arguments += _counted_split(job)
    if recipe.vpp > 1 and not job.framework.overlap_p2p:
        arguments.append(("--no-overlap-p2p-communication",))
    return arguments


def _counted_split(job: Job) -> Arguments:
    recipe = job.recipe
    arguments: Arguments = []
    for name, layers in (
        ("--decoder-first-pipeline-num-layers", recipe.first_stage_layers),
        ("--decoder-last-pipeline-num-layers", recipe.last_stage_layers),
    ):
        if layers is not None:
            arguments.append((name, str(layers)))
    for flag, given in (
        ("--account-for-embedding-in-pipeline-split", recipe.embedding_as_layer),
        ("--account-for-loss-in-pipeline-split", recipe.loss_as_layer),
    ):
        if given:
            arguments.append((flag,))
    if recipe.vpp > 1:
        # An uneven split has no single layer count per virtual stage.
        arguments.append(
            ("--num-virtual-stages-per-pipeline-rank", str(recipe.vpp))
            if arguments
            else (
                "--num-layers-per-virtual-pipeline-stage",
                str(job.layers_per_stage[0] // recipe.vpp),
            )
        )
    return arguments


def _recompute(job: Job) -> Arguments:
    if job.recipe.recompute == "none":
        return []
    full = megatron_core.recompute(job)
    if full is None:
        chosen: Arguments = [("--recompute-granularity", "selective")]
        modules = megatron_core.recompute_modules(job)
        return chosen + ([("--recompute-modules", *modules)] if modules else [])
    method, layers = full
    return [
        ("--recompute-granularity", "full"),
        ("--recompute-method", method),
        ("--recompute-num-layers", str(layers)),
    ]


def _data_parallel(job: Job) -> Arguments:
    recipe = job.recipe
    arguments: Arguments = []
    if recipe.zero_stage >= 1:
        arguments.append(("--use-distributed-optimizer",))
    if recipe.zero_stage >= 2:
        arguments += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", megatron_core.sharding(job)),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    if megatron_core.overlaps_gradients(job):
        arguments.append(("--overlap-grad-reduce",))
    # All stages gather a chunk's parameters at once, as is predicted: its default.
    if megatron_core.overlaps_parameters(job):
        arguments.append(("--overlap-param-gather",))
    return arguments
