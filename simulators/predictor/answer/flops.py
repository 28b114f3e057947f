"""Floating-point operations of a training step: the numerators of MFU and HFU.

Conventions (Korthikanti et al. 2022, appendix A; Chowdhery et al. 2022, appendix B): matrix
multiplications only, attention counted over the full square although causal kernels skip
half of it (``StepFlops.causal`` leaves that half out, as Megatron-LM does since the end of 2024),
active experts only, output layer at the unpadded vocabulary. A backward pass is
twice the forward, and as much as it where weights are frozen: adapters beside them do not count
(Megatron-Bridge's convention for LoRA). What a frozen reference or a teacher passes forward counts
once, its probabilities being part of the loss. Of packed sequences each attends to itself. A
multi-token-prediction module counts as a layer, an output layer and its projection of two hidden
states to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knobs.recomputation import DEFAULT_RECOMPUTE_MODULES
from trainscout.simulators.predictor.question.layers import (
    DENSE,
    MOE,
    NONE,
    WHOLE,
    AttentionMixer,
    CompressedAttention,
    Index,
    Layer,
)
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tower import Convolution, Tower
from trainscout.simulators.predictor.question.tuning import PROJECTORS, TOWERS


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step over all GPUs: of the model, the same with the half that causal attention
    needs, and of the model with what recomputation repeats."""

    model: float
    causal: float
    hardware: float


def step_flops(job: Job) -> StepFlops:
    """FLOPs of one training step of a valid job."""
    model, recipe, sequence = job.model, job.recipe, job.attended_length
    # All layers of a kind cost the same.
    kinds = list(zip(model.layers_of_each(0, model.num_layers), model.layer_kinds, strict=True))
    last = model.layer(model.num_layers)
    layers, head = _layers_flops(job), _head_flops(model) + _pooled_flops(job)
    module = layer_flops(model, sequence, last) + 4.0 * model.hidden_size**2
    forward = layers + head + model.num_mtp_layers * (module + head)
    repeated = 0.0
    if recipe.recompute == "selective":
        modules = frozenset((recipe.recompute_modules or DEFAULT_RECOMPUTE_MODULES).split("+"))
        for count, layer in kinds:
            repeated += count * _recomputed_flops(model, sequence, layer, modules)
        repeated += model.num_mtp_layers * _recomputed_flops(model, sequence, last, modules)
    elif recipe.recompute == "full":
        repeated = layers * _recomputed_share(job)
        if model.pooled is not None:
            repeated += sum(map(tower_flops, model.towers)) / job.sequence_length
    skipped = sum(count * _skipped_flops(model, sequence, layer) for count, layer in kinds)
    skipped += model.num_mtp_layers * _skipped_flops(model, sequence, last)
    tokens = job.tokens_per_step
    # Gradients of weights that nobody asks for.
    saved = 0.0
    if not job.training.trains_weights:
        free = sum(count * _weightless_flops(model, sequence, layer) for count, layer in kinds)
        free += model.num_mtp_layers * _weightless_flops(model, sequence, last)
        saved = forward - free
    step = 3 * forward - saved + _tower_flops(job)
    skipped *= 3
    if job.reference is not None:
        frozen, passes = job.reference.model, job.forwards_beside
        layers, head = _layers_flops(job.reference), _head_flops(frozen)
        step += passes * (layers + head + _tower_flops(job.reference))
        counts = frozen.layers_of_each(0, frozen.num_layers)
        for count, layer in zip(counts, frozen.layer_kinds, strict=True):
            skipped += passes * count * _skipped_flops(frozen, sequence, layer)
    return StepFlops(step * tokens, (step - skipped) * tokens, (step + repeated) * tokens)


def _products(stem: Sequence[Convolution]) -> int:
    """Multiplications of convolutions for one patch."""
    return sum(each.weights * each.places for each in stem)


def _head_flops(model: Model) -> float:
    if model.diffusion is not None:
        # Patches on their way in, too.
        return 4.0 * model.hidden_size * model.diffusion.patch_size
    if model.pooled is not None:
        pooled = model.pooled
        return 2.0 * (model.hidden_size * pooled.patch_size + _products(pooled.stem))
    streams = model.residual_streams
    collapse = streams * model.residual_width if streams > 1 else 0
    if model.laurel_rank is not None:
        collapse = 2 * (streams - 1) * model.hidden_size**2
    transform = model.hidden_size**2 if model.masked_head else 0
    return 2.0 * (model.hidden_size * model.vocab_size + collapse + transform)


def _pooled_flops(job: Job) -> float:
    """What is made of a sequence's vector, by token, forward."""
    pooled = job.model.pooled
    if pooled is None:
        return 0.0
    compared = job.recipe.micro_batch * pooled.replicas(job.dp)
    return pooled.flops(job.sequence_length, compared) / job.sequence_length


def _layers_flops(job: Job) -> float:
    """One token through all layers, forward."""
    model, sequence = job.model, job.attended_length
    kinds = zip(model.layers_of_each(0, model.num_layers), model.layer_kinds, strict=True)
    return sum(count * layer_flops(model, sequence, layer) for count, layer in kinds)


def _tower_flops(job: Job) -> float:
    """Both passes of the towers for one token of the language model, as far as they are needed."""
    frozen = set(job.training.frozen)
    total = 0.0
    for tower in job.model.towers:
        patches = tower.images * tower.patches
        projector = patches * 2.0 * tower.projector_products / tower.merged
        encoder = tower_flops(tower) - projector
        both = {TOWERS, PROJECTORS} <= frozen
        total += encoder * (1 if TOWERS in frozen else 3)
        total += projector * (1 if both else 2 if PROJECTORS in frozen else 3)
    return total / job.sequence_length


def _weightless_flops(model: Model, sequence: int, layer: Layer) -> float:
    """What of one token's forward pass through a layer multiplies activations alone."""
    flops = _module_flops(model, sequence, layer)
    return sum(flops.get(name, 0.0) for name in ("core_attn", "index_scores", "scan"))


def _skipped_flops(model: Model, sequence: int, layer: Layer) -> float:
    """What the full square counts of one token of a layer, forward, and causal attention skips."""
    mixer, model = model.mixer(layer), model.for_layer(layer)
    if mixer is not None and mixer.compressed is not None:
        return _compressed_flops(model, sequence, mixer.compressed)["core_attn"] / 2
    if mixer is None or mixer.attention is None or not mixer.attention.causal:
        return 0.0
    return attention_core_flops(model, sequence, mixer.attention) / 2


def tower_flops(tower: Tower) -> float:
    """One sequence's images through a tower, forward; its attention sees whole images."""
    hidden, patches = tower.hidden_size, tower.images * tower.patches
    mlp = (3 if tower.gated_mlp else 2) * hidden * tower.ffn_hidden_size
    seen = _seen(AttentionMixer(causal=False, chunk=tower.chunk), tower.patches)
    heads = tower.num_heads * tower.head_dim if tower.head_dim else hidden
    pairs = heads * tower.kv_heads // tower.num_heads
    layer = 2.0 * (2 * hidden * (heads + pairs) + mlp) + 4.0 * seen * heads
    if tower.taps:
        layer += 2.0 * (mlp + 3 * hidden**2)
    ends = 2.0 * tower.patch_size * hidden + 2.0 * tower.projector_products / tower.merged
    ends += 2.0 * _products(tower.stem)
    if tower.pools:
        # Keys and values of every patch; the output and an MLP of one vector an image.
        ends += 4.0 * hidden * (hidden + 1) + 2.0 * (hidden**2 + mlp) / tower.patches
    return patches * (tower.num_layers * layer + ends)


def _recomputed_share(job: Job) -> float:
    """Share of the layers that full recomputation repeats; all layers count alike."""
    repeated = 0
    for stage, chunks in enumerate(job.layers_per_chunk):
        per_chunk = job.recomputed_layers(stage)
        repeated += sum(count if per_chunk is None else min(per_chunk, count) for count in chunks)
    return repeated / job.model.num_layers


def attention_core_flops(model: Model, sequence: int, attention: AttentionMixer = WHOLE) -> float:
    """Scores and weighted values of one token of one layer, forward."""
    seen = 2.0 * sequence if attention.is_whole else 2.0 * _seen(attention, sequence)
    return seen * model.num_heads * (model.qk_head_dim + model.v_head_dim)


def _seen(attention: AttentionMixer, sequence: int) -> float:
    """Keys that a query counts with: twice what it attends to on average where that is limited,
    as the full square counts twice a causal half."""
    if attention.chunk is not None and attention.chunk < sequence:
        number, rest = divmod(sequence, attention.chunk)
        return (number * attention.chunk**2 + rest**2) / sequence
    most = attention.window
    if attention.index is not None:
        most = attention.index.top_k
    if most is None or most >= sequence * (1 if attention.causal else 2):
        return sequence
    if not attention.causal:
        # To either side, less what sticks out at both ends.
        return most - (most // 2) * (most // 2 + 1) / sequence
    return 2.0 * most - most * most / sequence


def layer_flops(model: Model, sequence: int, layer: Layer) -> float:
    """One token through one layer, forward."""
    return sum(_module_flops(model, sequence, layer).values())


def _module_flops(model: Model, sequence: int, layer: Layer) -> dict[str, float]:
    """One token through one layer, forward, by the modules that recomputation names."""
    mixer, model = model.mixer(layer), model.for_layer(layer)
    hidden = model.hidden_size
    gate = 3 if model.gated_mlp else 2
    attention = None if mixer is None else mixer.attention
    flops = {}
    if attention is not None:
        flops = {
            "core_attn": attention_core_flops(model, sequence, attention),
            "attn_out": 2.0 * model.num_heads * model.v_head_dim * hidden,
        }
    if layer.mlp == MOE and model.moe is not None:
        moe = model.moe
        width = moe.latent_size or hidden
        flops["moe"] = 2.0 * width * moe.top_k * moe.ffn_hidden_size * gate
        flops["moe"] += 2.0 * hidden * moe.num_experts + 4.0 * hidden * (moe.latent_size or 0)
        flops["shared_experts"] = 2.0 * hidden * moe.shared_ffn_hidden_size * gate
    elif layer.mlp == DENSE:
        flops["mlp"] = 2.0 * hidden * model.ffn_hidden_size * gate
    if model.per_layer_input is not None:
        # Its share of the projection of the embedding, the gate, and the projection back.
        flops["per_layer_input"] = 6.0 * hidden * model.per_layer_input.hidden_size
    if attention is not None:
        flops |= _projection_flops(model, attention)
        if attention.index is not None:
            flops |= _index_flops(model, sequence, attention.index)
    if mixer is not None and mixer.cross:
        for module, more in _cross_flops(model, sequence).items():
            flops[module] = flops.get(module, 0.0) + more
    ssm = None if mixer is None else mixer.mamba2 or mixer.mamba1
    if ssm is not None:
        # Seven operations for each element of the state, which one token updates and reads
        # (Megatron-LM's ``mamba_layer_flops``).
        flops |= {"mamba": 2.0 * ssm.weights(hidden), "scan": 7.0 * ssm.inner * ssm.state}
    if mixer is not None and mixer.delta is not None:
        delta = mixer.delta
        # What the state holds for the key, the correction, its outer product, and what the query
        # reads, each a product with the state.
        rule = 8.0 * delta.v_heads * delta.k_dim * delta.v_dim
        flops |= {"delta": 2.0 * delta.weights(hidden), "scan": flops.get("scan", 0.0) + rule}
    if mixer is not None and mixer.compressed is not None:
        flops |= _compressed_flops(model, sequence, mixer.compressed)
    if model.laurel_rank is not None:
        # The router twice, what makes coefficients, predictions, and the low-rank products.
        streams = model.residual_streams
        routed = 2 * hidden + hidden * streams + streams**2 + streams
        flops["streams"] = 2.0 * (streams * routed + 2 * hidden * model.laurel_rank)
    elif model.residual_streams > 1:
        halves = (0 if mixer is None else len(mixer.in_turn)) + (layer.mlp != NONE)
        flops["streams"] = 2.0 * halves * model.mixing_weights * model.residual_width
    if mixer is not None and mixer.short_conv is not None:
        flops["conv"] = 8.0 * hidden * mixer.short_conv.channels
    return flops


def _cross_flops(model: Model, sequence: int) -> dict[str, float]:
    """Queries and output of a token, its share of the keys and values of what is looked at, and
    the core."""
    tokens, width = model.looked_at
    heads, pairs = (n * model.qk_head_dim for n in (model.num_heads, 2 * model.kv_heads))
    return {
        "qkv": 2.0 * (model.hidden_size * heads + width * pairs * tokens / (sequence or tokens)),
        "core_attn": 4.0 * tokens * heads,
        "attn_out": 2.0 * heads * model.hidden_size,
    }


def _index_flops(model: Model, sequence: int, index: Index) -> dict[str, float]:
    """Projections of an indexer, and its scores of all keys."""
    weights = index.weights(model.query_inputs, model.hidden_size)
    scores = 2.0 * sequence * index.heads * index.dim
    return {"index": 2.0 * weights, "index_scores": scores}


def _compressed_flops(model: Model, sequence: int, mixer: CompressedAttention) -> dict[str, float]:
    """Keys count twice, as the full square counts twice a causal half; scores of an indexer are of
    all compressed keys."""
    hidden, index = model.hidden_size, mixer.index
    inner = model.num_heads * model.qk_head_dim
    scored = 0 if index is None else index.heads * index.dim
    return {
        "qkv": 2.0 * mixer.in_weights(hidden, model.qk_head_dim),
        "mla_up_proj": 2.0 * mixer.q_rank * inner,
        "core_attn": 8.0 * mixer.seen(sequence) * inner,
        "index_scores": 2.0 * sequence / mixer.rate * scored,
        "attn_out": 2.0 * mixer.out_weights(hidden, inner),
    }


def _recomputed_flops(model: Model, sequence: int, layer: Layer, modules: frozenset[str]) -> float:
    """What selective recomputation of ``modules`` repeats of one layer, for one token."""
    flops = _module_flops(model, sequence, layer)
    if "operations" not in modules:
        if "moe" in modules:
            modules |= {"shared_experts"}
        return sum(count for name, count in flops.items() if name in modules)
    # Every other product runs again (model/recompute.py); experts' do, attention does not.
    groups = model.kv_heads / (model.num_heads + 2 * model.kv_heads)
    share = {
        "core_attn": 0.0,
        "attn_out": 1.0,
        "qkv": groups,
        "mlp": 1 / 3 if model.gated_mlp else 1 / 2,
        "moe": 1.0,
    }
    return sum(count * share.get(name, 0.5) for name, count in flops.items())


def _projection_flops(model: Model, attention: AttentionMixer) -> dict[str, float]:
    hidden, mla = model.hidden_size, model.mla
    if mla is None:
        sizes = model.num_heads, model.kv_heads, model.qk_head_dim, model.v_head_dim
        return {"qkv": 2.0 * hidden * sum(attention.projected_widths(*sizes))}
    up = mla.up_weights(hidden, model.num_heads)
    up += attention.latent_gates(model.num_heads, mla.v_head_dim) * hidden
    return {"mla_down_proj": 2.0 * mla.down_weights(hidden), "mla_up_proj": 2.0 * up}
