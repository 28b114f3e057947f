"""Floating-point operations of a training step: the numerators of MFU and HFU.

Conventions (Korthikanti et al. 2022, appendix A; Chowdhery et al. 2022, appendix B): matrix
multiplications only, attention counted over the full square although causal kernels skip
half of it, active experts only, output layer at the unpadded vocabulary. A backward pass is
twice the forward. A multi-token-prediction module counts as a layer, an output layer and its
projection of two hidden states to one.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import DEFAULT_RECOMPUTE_MODULES


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step over all GPUs: of the model, and with what recomputation repeats."""

    model: float
    hardware: float


def step_flops(job: Job) -> StepFlops:
    """FLOPs of one training step of a valid job."""
    model, recipe, sequence = job.model, job.recipe, job.sequence_length
    # All layers of a kind cost the same.
    experts = sum(model.is_moe_layer(layer) for layer in range(model.num_layers))
    dense = model.num_layers - experts
    layers = dense * layer_flops(model, sequence, False)
    if experts:
        layers += experts * layer_flops(model, sequence, True)
    head = 2.0 * model.hidden_size * model.vocab_size
    module = (
        layer_flops(model, sequence, model.is_moe_layer(model.num_layers))
        + 4.0 * model.hidden_size**2
    )
    forward = layers + head + model.num_mtp_layers * (module + head)
    repeated = 0.0
    if recipe.recompute == "selective":
        modules = frozenset((recipe.recompute_modules or DEFAULT_RECOMPUTE_MODULES).split("+"))
        repeated = dense * _recomputed_flops(model, sequence, False, modules)
        repeated += experts * _recomputed_flops(model, sequence, True, modules)
        last = model.is_moe_layer(model.num_layers)
        repeated += model.num_mtp_layers * _recomputed_flops(model, sequence, last, modules)
    elif recipe.recompute == "full":
        repeated = layers * _recomputed_share(job)
    tokens = job.tokens_per_step
    return StepFlops(3 * forward * tokens, (3 * forward + repeated) * tokens)


def _recomputed_share(job: Job) -> float:
    """Share of the layers that full recomputation repeats; all layers count alike."""
    repeated = 0
    for stage, chunks in enumerate(job.layers_per_chunk):
        per_chunk = job.recomputed_layers(stage)
        repeated += sum(count if per_chunk is None else min(per_chunk, count) for count in chunks)
    return repeated / job.model.num_layers


def attention_core_flops(model: Model, sequence: int) -> float:
    """Scores and weighted values of one token of one layer, forward."""
    return 2.0 * sequence * model.num_heads * (model.qk_head_dim + model.v_head_dim)


def layer_flops(model: Model, sequence: int, is_moe: bool) -> float:
    """One token through one layer, forward."""
    return sum(_module_flops(model, sequence, is_moe).values())


def _module_flops(model: Model, sequence: int, is_moe: bool) -> dict[str, float]:
    """One token through one layer, forward, by the modules that recomputation names."""
    hidden = model.hidden_size
    gate = 3 if model.gated_mlp else 2
    flops = {
        "core_attn": attention_core_flops(model, sequence),
        "attn_out": 2.0 * model.num_heads * model.v_head_dim * hidden,
    }
    if is_moe and model.moe is not None:
        moe = model.moe
        flops["moe"] = (
            2.0 * hidden * moe.top_k * moe.ffn_hidden_size * gate + 2.0 * hidden * moe.num_experts
        )
        flops["shared_experts"] = 2.0 * hidden * moe.shared_ffn_hidden_size * gate
    else:
        flops["mlp"] = 2.0 * hidden * model.ffn_hidden_size * gate
    return flops | _projection_flops(model)


def _recomputed_flops(model: Model, sequence: int, is_moe: bool, modules: frozenset[str]) -> float:
    """What selective recomputation of ``modules`` repeats of one layer, for one token."""
    flops = _module_flops(model, sequence, is_moe)
    if "operations" not in modules:
        if "moe" in modules:
            modules |= {"shared_experts"}
        return sum(count for name, count in flops.items() if name in modules)
    # Every other product runs again (workload/recompute.py); experts' do, attention does not.
    groups = model.kv_heads / (model.num_heads + 2 * model.kv_heads)
    share = {
        "core_attn": 0.0,
        "attn_out": 1.0,
        "qkv": groups,
        "mlp": 1 / 3 if model.gated_mlp else 1 / 2,
        "moe": 1.0,
    }
    return sum(count * share.get(name, 0.5) for name, count in flops.items())


def _projection_flops(model: Model) -> dict[str, float]:
    hidden, mla = model.hidden_size, model.mla
    if mla is None:
        return {"qkv": 2.0 * hidden * (model.num_heads + 2 * model.kv_heads) * model.qk_head_dim}
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    query = hidden
    if mla.q_lora_rank is not None:
        down += hidden * mla.q_lora_rank
        query = mla.q_lora_rank
    up = model.num_heads * (
        query * model.qk_head_dim + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
    )
    return {"mla_down_proj": 2.0 * down, "mla_up_proj": 2.0 * up}
