"""What Megatron-Core makes of a recipe, whichever training loop runs it.

Checked against Megatron-Core 0.16.1: ``TransformerConfig``, ``OptimizerConfig`` and
``DistributedOptimizer`` refuse what ``impossible`` lists.
"""

from __future__ import annotations

from typing import Any

from trainscout.reports.dialects import megatron_hybrid
from trainscout.reports.dialects.megatron_zero_bubble import UNNAMED
from trainscout.reports.dialects.setting import unknown_knobs
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import MEGATRON_BRIDGE
from trainscout.simulators.predictor.question.schedules import schedule_kind

# 8-bit scaling: Transformer Engine's recipe and number format.
FP8 = {
    "fp8": ("delayed", "hybrid"),
    "fp8_current": ("tensorwise", "hybrid"),
    "fp8_block": ("blockwise", "e4m3"),
    "mxfp8": ("mxfp8", "e4m3"),
}
# 4-bit scaling, likewise.
FP4 = {"nvfp4": ("nvfp4", "e2m1")}
QUANTISED_PARAMETERS = (
    "--fp8-param-gather",
    "--reuse-grad-buf-for-mxfp8-param-ag",
    "--fp4-param-gather",
)
"""Arguments that say in which type parameters are kept and gathered."""
_GROUPED_GEMM_PRECISIONS = ("bf16", *FP8, *FP4)
# Variables by which Transformer Engine leaves a part of NVFP4 out.
_WITHOUT = {
    "nvfp4_hadamard": "NVTE_NVFP4_DISABLE_RHT",
    "nvfp4_stochastic_rounding": "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING",
    "nvfp4_two_dimensional": "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
}
# Names of linear layers, by their group; the first that matches counts.
_LAYERS = {
    "mtp": "mtp.*",
    "qkv": "*.linear_[qk]*",
    "attn_out": "*.linear_proj",
    "mixer_in": "*mixer.in_proj",
    "mixer_out": "*mixer.out_proj",
    "latent": "*mlp.fc[12]_latent_proj",
    "shared_experts": "*.shared_experts.linear_fc[12]",
    "experts": "*.experts.linear_fc[12]",
    "mlp": "*.mlp.linear_fc[12]",
}
_RECOMPUTE_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)

WHOLE_ITERATION = ("full_iteration",)
UP_TO_EXPERTS = ("attn", "moe_router", "moe_preprocess")
# Knobs that several settings say together, and those that are said not to be supported.
_TOGETHER = (
    *("vpp", "schedule", "precision", "zero_stage", "overlap_grad_reduce"),
    *("overlap_param_gather", "recompute", "recompute_layers", "recompute_modules"),
    *("recompute_taper", "pipeline_layout", "grad_dtype", "fp8_param_gather", "optimizer_states"),
    *("optimizer_offload", "offload_modules", "moe_dispatcher", "cuda_graphs"),
)


def environment(job: Job) -> dict[str, str]:
    """Variables without which Megatron-Core does not overlap, or quantise, as predicted."""
    return _order(job) | {
        variable: "1"
        for switch, variable in _WITHOUT.items()
        if job.precision in FP4 and not getattr(job.training, switch)
    }


def module_precision(job: Job) -> dict[str, Any]:
    """What ``--te-precision-config-file`` names: in what groups of layers multiply that differ
    from others (``quantization/README.md``); empty where none do."""
    own = dict(job.module_precision)
    recipes: dict[str, dict[str, str]] = {"bf16": {}}
    recipes |= {name: {"fp8_quantization_recipe": recipe} for name, (recipe, _) in FP8.items()}
    recipes |= {name: {"fp4_quantization_recipe": recipe} for name, (recipe, _) in FP4.items()}
    kind = {"transformer_engine_config_type": "TEQuantizationParams"}
    return (
        {
            "configs": {name: {**kind, "training_recipe": recipes[name]} for name in own.values()},
            "matchers": {
                name: {"config": own[name], "type": "glob", "pattern": pattern, "enabled": True}
                for name, pattern in _LAYERS.items()
                if name in own
            },
        }
        if own
        else {}
    )


def _order(job: Job) -> dict[str, str]:
    # Megatron orders TP/CP communication before the kernels it overlaps by this variable, and
    # refuses to start without it before Blackwell; its FSDP refuses to start with it.
    ordered = job.recipe.tp > 1 or job.recipe.cp > 1
    if ordered and job.recipe.zero_stage < 2 and job.gpu.compute_capability < 10:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {}


def attention_backend(job: Job) -> str:
    """Megatron's name for the attention that runs."""
    if job.attention == "unfused":
        return "unfused"
    # Latent attention's keys are wider than its values, which FlashAttention 2 does not take.
    return "flash" if job.model.mla is None else "auto"


def grouped_gemm(job: Job) -> bool:
    """Whether all experts of a rank run in one product."""
    return job.model.moe is not None and job.precision in _GROUPED_GEMM_PRECISIONS


def recompute_modules(job: Job) -> tuple[str, ...] | None:
    """The modules a selective recipe recomputes that Megatron-Core can; None: its default."""
    named = (job.recipe.recompute_modules or "").split("+")
    return tuple(module for module in named if module and _can_recompute(job, module)) or None


def offload_modules(job: Job) -> tuple[str, ...] | None:
    """The modules whose inputs wait in the host's memory."""
    named = job.recipe.offload_modules
    return None if named is None else tuple(named.split("+"))


def _can_recompute(job: Job, module: str) -> bool:
    if module not in _RECOMPUTE_MODULES:
        return False
    if job.precision == "fp8" and module in ("moe_act", "layernorm"):
        return False
    if module == "moe_act":
        return grouped_gemm(job)
    return module != "mla_up_proj" or job.model.mla is not None


def quantised_parameters(job: Job) -> tuple[str, ...]:
    """Those of ``QUANTISED_PARAMETERS`` that a job sets."""
    eight, through_gradients, four = QUANTISED_PARAMETERS
    if not job.keeps_quantised:
        return ()
    if job.precision in FP4:
        return (four,)
    # Megatron's FSDP has no such buffer.
    shared = job.precision == "mxfp8" and job.recipe.zero_stage == 1
    return (eight, through_gradients) if shared else (eight,)


def graph_scope(job: Job) -> tuple[str, ...]:
    """What CUDA graphs hold, as ``--cuda-graph-scope`` names it; nothing where there are none.

    Its rules: ``transformer_config.py``. Megatron's FSDP has none, nor has a module that draws
    random numbers and is recomputed.
    """
    model, recipe, moe = job.model, job.recipe, job.moe
    if not job.framework.cuda_graphs or recipe.zero_stage >= 2:
        return ()
    selective = recipe.recompute == "selective"
    again = set((recompute_modules(job) or ("core_attn",)) if selective else ())
    if model.dropout and again & {"core_attn", "mlp", "moe"}:
        return ()
    if moe is None or (moe.padded and not recipe.overlap_moe_expert_parallel_comm):
        return WHOLE_ITERATION
    if recipe.recompute == "full":
        return ()
    if "moe" in again:
        return UP_TO_EXPERTS[:1]
    # Experts with a capacity, not padded: this dispatcher copies their counts to the host.
    counted = job.dispatcher == "alltoall" and moe.capacity_factor is not None
    return UP_TO_EXPERTS[:2] if counted else UP_TO_EXPERTS


def _predicted_scope(job: Job) -> tuple[str, ...]:
    """What a job's CUDA graphs hold in its prediction."""
    return WHOLE_ITERATION if job.replays_iterations else UP_TO_EXPERTS


def unsupported(job: Job, framework: str) -> tuple[str, ...]:
    """What the recipe asks for and Megatron-Core does otherwise, or ``framework`` around it knows
    nothing of, in words."""
    recipe = job.recipe
    missing = unknown_knobs(framework, _TOGETHER, job)
    missing += megatron_hybrid.unsupported(job)
    if job.schedule in UNNAMED or (job.schedule != "1f1b" and framework == MEGATRON_BRIDGE):
        missing.append(f"schedule={job.schedule} (Megatron runs 1F1B)")
    if job.schedule == "zb-h1" and recipe.vpp > 1:
        missing.append(f"schedule={job.schedule} with vpp={recipe.vpp}")
    if schedule_kind(job.schedule).splits_backward and recipe.pipeline_layout:
        missing.append(f"pipeline_layout={recipe.pipeline_layout} with schedule={job.schedule}")
    if recipe.recompute_taper:
        missing.append(
            f"recompute_taper={recipe.recompute_taper} (Megatron recomputes as many layers on "
            "every stage)"
        )
    if recipe.recompute == "selective":
        named = (recipe.recompute_modules or "core_attn").split("+")
        unnamed = [module for module in named if not _can_recompute(job, module)]
        if unnamed:
            missing.append(f"recompute_modules={'+'.join(sorted(unnamed))}")
    # In 8 and 4 bits, too, --bf16 stands.
    halves = job.precision not in ("fp32", "tf32", "fp16")
    whole_copy = halves and not job.framework.master_remainders
    if job.optimizer == "adam_bf16" and whole_copy:
        instead = "recipe.optimizer_states=bf16 keeps what weights lack of it, as here"
        missing.append(f"optimizer=adam_bf16 with a whole fp32 copy of weights ({instead})")
    if job.precision == "tf32":
        missing.append("precision=tf32 (set torch.backends.cuda.matmul.allow_tf32 in the script)")
    if job.attention != "unfused" and job.precision in ("fp32", "tf32"):
        missing.append(
            f"attention=flash in {job.precision} (FlashAttention 2 needs bf16 or fp16; "
            "framework.attention=unfused runs everywhere)"
        )
    if job.model.moe is not None and not grouped_gemm(job):
        missing.append(f"grouped GEMM in {job.precision} (Megatron has it for bf16 models)")
    scope = graph_scope(job)
    if job.framework.cuda_graphs and scope != _predicted_scope(job):
        stated = f"--cuda-graph-scope {' '.join(scope)}" if scope else "no CUDA graphs here"
        if scope == UP_TO_EXPERTS and job.framework.fused_experts:
            stated += "; of fused experts since Megatron-Bridge 0.6: moe_paged_stash"
        missing.append(f"CUDA graphs of {' '.join(_predicted_scope(job))} ({stated})")
    return tuple(missing)


def impossible(job: Job) -> tuple[str, ...]:
    """Why Megatron-Core would refuse to start, in words."""
    recipe, moe = job.recipe, job.model.moe
    reasons = []
    if job.optimizer == "adam_bf16" and recipe.zero_stage == 0:
        reasons.append("16-bit moments (optimizer=adam_bf16) need zero_stage >= 1")
    if job.optimizer == "adam_pure_bf16":
        reasons.append("optimizer=adam_pure_bf16 (it keeps an fp32 copy, or the rest of one)")
    if job.optimizer == "sgd" and recipe.zero_stage > 0:
        reasons.append("the distributed optimizer (zero_stage > 0) is Adam's only")
    if recipe.vpp > 1 and recipe.pp == 2 and not job.framework.overlap_p2p:
        reasons.append("vpp > 1 with pp=2 needs overlapped transfers (framework.overlap_p2p)")
    pads = moe is not None and moe.capacity_factor is not None and moe.pad_to_capacity
    if pads and job.dispatcher == "deepep":
        reasons.append("DeepEP does not pad experts to a capacity (moe.pad_to_capacity)")
    if recipe.overlap_moe_expert_parallel_comm and moe is not None:
        if job.dispatcher == "allgather":
            reasons.append("overlap_moe_expert_parallel_comm with the allgather dispatcher")
        if job.precision in ("fp32", "tf32"):
            reasons.append(f"overlap_moe_expert_parallel_comm in {job.precision}")
        if job.model.num_mtp_layers > 1 or (job.model.num_mtp_layers and recipe.pp == 1):
            reasons.append(
                "overlap_moe_expert_parallel_comm takes one multi-token-prediction module, and "
                "pp > 1 with it"
            )
    return tuple(reasons)
