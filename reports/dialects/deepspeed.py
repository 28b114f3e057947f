"""A job in the words of DeepSpeed ZeRO: its JSON, and the Hugging Face model of the same shape.

Keys are those of DeepSpeed 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainscout.reports.dialects.setting import Code, unknown_knobs
from trainscout.reports.dialects.shape import unscaled, untold
from trainscout.reports.dialects.software import unsaid_facts
from trainscout.reports.dialects.tuning import unpacked, untrainable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import DEEPSPEED
from trainscout.simulators.predictor.question.knobs.recomputation import DEFAULT_RECOMPUTE_MODULES
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS

TITLE = "DeepSpeed"
# Knobs that several settings say together, those that are said not to be supported, and those that
# only mean something with parallelism that makes a job impossible.
_TOGETHER = (
    *("tp", "pp", "cp", "cp_comm_type", "ep", "etp", "vpp", "sp", "tp_comm_overlap", "schedule"),
    *("overlap_moe_expert_parallel_comm", "use_tp_pp_dp_mapping", "first_stage_layers"),
    *("last_stage_layers", "embedding_as_layer", "loss_as_layer", "precision", "recompute"),
    *("recompute_layers", "recompute_taper", "recompute_modules", "overlap_grad_reduce"),
    *("pipeline_layout", "overlap_param_gather", "grad_dtype", "moe_dispatcher", "cuda_graphs"),
    "optimizer_offload",
)
# Fields of the software that its files say, or that are said not to be supported.
_FACTS = ("accumulate_grads_fp32", "waits_for_reductions", "attention", "cuda_graphs")


def settings_of(job: Job) -> dict[str, Any]:
    """DeepSpeed's configuration of a job that it can run."""
    recipe, training = job.recipe, job.training
    sharded, waits = recipe.zero_stage >= 2, job.framework.waits_for_reductions
    flat: dict[str, object] = {
        "train_batch_size": training.global_batch_size,
        KNOBS["micro_batch"].flags[DEEPSPEED].name: recipe.micro_batch,
        "gradient_accumulation_steps": job.num_micro_batches,
        "gradient_clipping": 1.0,
        KNOBS["zero_stage"].flags[DEEPSPEED].name: recipe.zero_stage,
        # What is sharded travels beside computation, as is predicted.
        "zero_optimization.overlap_comm": not waits if sharded else recipe.overlap_grad_reduce,
        "zero_optimization.contiguous_gradients": True,
        "optimizer.type": "SGD" if job.optimizer == "sgd" else "AdamW",
        "optimizer.params.lr": 1e-4,
    }
    if recipe.optimizer_offload:
        flat |= {
            "zero_optimization.offload_optimizer.device": "cpu",
            "zero_optimization.offload_optimizer.pin_memory": True,
        }
        if recipe.zero_stage == 3:
            flat["zero_optimization.offload_optimizer.ratio"] = recipe.optimizer_offload / 100
    elif job.optimizer == "sgd":
        flat |= {"optimizer.params.momentum": 0.9, "zero_allow_untested_optimizer": True}
    else:
        # PyTorch's own, which needs no compiler where it runs.
        flat["optimizer.params.torch_adam"] = True
    if _is_half(job):
        flat[f"{job.precision}.enabled"] = True
    if job.framework.accumulate_grads_fp32 and recipe.zero_stage:
        flat["data_types.grad_accum_dtype"] = "fp32"
    for name, knob in KNOBS.items():
        if DEEPSPEED in knob.flags and (value := getattr(recipe, name)) != knob.default:
            flat.setdefault(knob.flags[DEEPSPEED].name, value)
    return _nested(flat)


def _nested(flat: Mapping[str, object]) -> dict[str, Any]:
    """Keys with dots as objects within objects."""
    made: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        place = made
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return made


def _is_half(job: Job) -> bool:
    return job.precision in ("bf16", "fp16")


def impossible(job: Job) -> tuple[str, ...]:
    recipe, model = job.recipe, job.model
    reasons = []
    if recipe.tp > 1:
        reasons.append(f"tp={recipe.tp} (ZeRO alone shards data parallelism)")
    if recipe.pp > 1:
        reasons.append(f"pp={recipe.pp} (its pipelines want the model as a list of layers)")
    if recipe.cp > 1:
        reasons.append(f"cp={recipe.cp} (its sequence parallelism wants its own attention)")
    if model.moe is not None:
        reasons.append("model: experts (its expert parallelism wants its own layers)")
    if model.mla is not None:
        reasons.append("model: latent attention")
    if model.num_mtp_layers:
        reasons.append("model: multi-token prediction")
    reasons += [f"model: {words}" for words in (*model.special_layers, *untold(model))]
    reasons += untrainable(job, adapters=model.gated_mlp)
    if job.precision not in ("bf16", "fp16", "fp32", "tf32"):
        reasons.append(f"precision={job.precision}")
    if model.moe is None and model.mla is None and hugging_face(model) is None:
        reasons.append("model: no Hugging Face model mixes norm, bias, gate and positions so")
    return tuple(reasons)


def unsupported(job: Job) -> tuple[str, ...]:
    recipe = job.recipe
    missing = unknown_knobs(DEEPSPEED, _TOGETHER, job)
    if recipe.recompute == "selective":
        modules = recipe.recompute_modules or DEFAULT_RECOMPUTE_MODULES
        missing.append(
            f"recompute=selective({modules}) (its models recompute whole layers or nothing: "
            "nothing)"
        )
    if recipe.recompute_layers is not None:
        missing.append(f"recompute_layers={recipe.recompute_layers} (every layer is recomputed)")
    if recipe.zero_stage and job.dp > 1 and recipe.overlap_param_gather and recipe.zero_stage < 3:
        missing.append("overlap_param_gather (stages 1 and 2 gather after the optimizer)")
    if job.framework.accumulate_grads_fp32 and not recipe.zero_stage and _is_half(job):
        missing.append(f"gradients in fp32 under zero_stage=0 (they stay {job.precision})")
    if job.optimizer in ("adam_bf16", "adam_pure_bf16"):
        missing.append(f"optimizer={job.optimizer} (moments stay fp32)")
    missing += unsaid_facts(job, _FACTS)
    missing += (*unscaled(job.model), *unpacked(job))
    if job.precision == "tf32":
        missing.append("precision=tf32 (torch.backends.cuda.matmul.allow_tf32 in the script)")
    if job.framework.cuda_graphs:
        missing.append("CUDA graphs, which framework.cuda_graphs assumes")
    return tuple(missing)


def hugging_face(model: Model) -> tuple[str, dict[str, object]] | None:
    """The configuration class of Transformers with this model's parts, and its fields."""
    if model.normalization == "layernorm":
        gpt2 = not model.gated_mlp and model.position == "learned" and model.linear_bias
        grouped = model.kv_heads != model.num_heads or model.head_dim is not None
        return None if not gpt2 or grouped or model.qk_norm else ("GPT2Config", _gpt2(model))
    if not model.gated_mlp or model.position != "rope" or model.linear_bias or model.dropout:
        return None
    fields: dict[str, object] = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": Code("SEQUENCE"),
        "tie_word_embeddings": model.tied_embeddings,
        "head_dim": model.qk_head_dim,
        "use_cache": False,
    }
    if model.qk_norm:
        return None if model.qkv_bias else ("Qwen3Config", fields)
    if model.qkv_bias:
        # Its heads are always as wide as the hidden size divides to.
        del fields["head_dim"]
        split = model.qk_head_dim * model.num_heads == model.hidden_size
        return ("Qwen2Config", fields) if split else None
    return "LlamaConfig", fields


def _gpt2(model: Model) -> dict[str, object]:
    dropout = 0.1 if model.dropout else 0.0
    return {
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_inner": model.ffn_hidden_size,
        "n_head": model.num_heads,
        "vocab_size": model.vocab_size,
        "n_positions": Code("SEQUENCE"),
        "tie_word_embeddings": model.tied_embeddings,
        "resid_pdrop": dropout,
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "use_cache": False,
    }
