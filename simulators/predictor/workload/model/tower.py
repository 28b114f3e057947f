"""Encoders in front of the embedding: patches, layers, the projection to the language model.

A tower in front of a language model keeps its activations, whatever the layers behind it do; one
whose images are compared with texts is recomputed as those are. None has sequence or context
parallelism: each rank encodes the images of its whole sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainscout.simulators.predictor.question.layers import DENSE, AttentionMixer, Layer, Mixer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tower import Convolution, Tower
from trainscout.simulators.predictor.question.tuning import PROJECTORS, TOWERS
from trainscout.simulators.predictor.workload.feed_forward.mlp import mlp_part
from trainscout.simulators.predictor.workload.ir import Alloc, Free, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.linear import linear
from trainscout.simulators.predictor.workload.mixers.cross_attention import looked_at_part
from trainscout.simulators.predictor.workload.mixers.state_space import convolution
from trainscout.simulators.predictor.workload.parameters import LocalParameters, layer_parameters
from trainscout.simulators.predictor.workload.part import (
    Part,
    beside_rerun_bytes,
    checkpointed,
    norm,
    residual,
)
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_part
from trainscout.simulators.predictor.workload.shard import Shard

from .layer import layer_parts

_LAYER = Layer("tower", DENSE)


def tower_parts(shard: Shard) -> list[Part]:
    """Every tower of the shard's model, one after another. A frozen one has no backward pass, and
    keeps nothing; its projector has none where it is frozen too."""
    parts = []
    for tower in shard.model.towers:
        own = _shard(shard, tower)
        projecting = replace(own, trains=PROJECTORS not in shard.frozen)
        tokens = projecting.tokens // tower.merged
        merging = stem_parts(projecting, tower.behind, tokens, "merging")
        projector = [*merging, _projector(projecting, tower)]
        frozen = [not own.trains, {TOWERS, PROJECTORS} <= set(shard.frozen)]
        for each, rests in zip((_parts(own, tower), projector), frozen, strict=True):
            parts += [part.forward_only for part in each] if rests else each
    return [*parts, looked_at_part(shard)] if any(shard.model.looked_at) else parts


def tower_parameters(shard: Shard) -> LocalParameters:
    """Their parameters on a rank: layers are sharded, patches and projectors are not."""
    held = LocalParameters()
    for tower in shard.model.towers:
        encoder = LocalParameters(_parameters(_shard(shard, tower), tower))
        projector = LocalParameters(tower.projector_weights)
        held += encoder.frozen if TOWERS in shard.frozen else encoder
        held += projector.frozen if PROJECTORS in shard.frozen else projector
    return held


def _shard(shard: Shard, tower: Tower) -> Shard:
    """As if the tower were the model, and images the sequences."""
    model = Model(
        name=tower.name,
        num_layers=tower.num_layers,
        hidden_size=tower.hidden_size,
        num_heads=tower.num_heads,
        ffn_hidden_size=tower.ffn_hidden_size,
        vocab_size=shard.model.vocab_size,
        vocab_multiple=shard.model.vocab_multiple,
        sequence_length=tower.patches,
        source="",
        head_dim=tower.head_dim,
        num_query_groups=tower.num_query_groups,
        gated_mlp=tower.gated_mlp,
        normalization=tower.normalization,
        position="learned" if tower.positions else "rope" if tower.rotary else "none",
        linear_bias=tower.linear_bias,
        qkv_bias=tower.linear_bias,
        # Encoders of images and sound have none in what is released.
        dropout=tower.reads_words and shard.model.dropout,
        layers=f"{tower.num_layers}*tower/dense",
        kinds={"tower": Mixer(attention=AttentionMixer(causal=False, chunk=tower.chunk))},
    )
    return replace(
        shard,
        model=model,
        batch=shard.batch * tower.images,
        sequence=tower.patches,
        attended=tower.patches,
        lora=None,
        frozen_weights="16bit",
        fp32_outputs=False,
        trains=TOWERS not in shard.frozen,
        cp=1,
        sp=False,
        tp_comm_overlap=False,
        keeps_gathered=False,
        repeats_kv=False,
    )


def _parts(shard: Shard, tower: Tower) -> list[Part]:
    layer = [*layer_parts(shard, _LAYER), *(_conformer_parts(shard, tower) if tower.taps else ())]
    if shard.checkpoints_towers:
        layer = [_checkpointed_layer(shard, layer)]
    layers = layer * tower.num_layers + (_pooling_parts(shard, tower) if tower.pools else [])
    hidden, size = tower.hidden_size, shard.element_bytes
    if tower.reads_words:
        return [embedding_part(shard), *layers]
    if not tower.patch_size:
        return layers
    forward, backward = linear(shard, "patches", shard.tokens, tower.patch_size, hidden)
    pixels = shard.tokens * tower.patch_size * size
    if tower.stem:
        stem = stem_parts(shard, tower.stem, shard.tokens)
        return [*stem, Part(tuple(forward), tuple(backward)), *layers]
    patches = Part(
        tuple(forward),
        # Images have no gradient.
        tuple(op for op in backward if getattr(op, "name", "") != "patches_dgrad"),
        (Alloc("pixels", pixels),),
        forward_peak_bytes=shard.tokens * hidden * size,
        backward_peak_bytes=shard.tokens * hidden * size,
    )
    return [patches, *layers]


def _checkpointed_layer(shard: Shard, layer: Sequence[Part]) -> Part:
    """A layer of which only the input is kept, and which runs again ahead of its backward pass."""
    kept = shard.tokens * shard.model.hidden_size * shard.stream_bytes
    stops_early = shard.recompute_stops_early
    beside = beside_rerun_bytes(shard)
    forward, backward = checkpointed(
        "tower", layer, kept, beside_bytes=beside, stops_early=stops_early
    )
    return Part(
        tuple(op for op in forward.ops if not isinstance(op, Alloc)),
        tuple(op for op in backward.ops if not isinstance(op, Free)),
        (Alloc("layer_input", kept),),
        forward_peak_bytes=max(0, forward.peak_bytes - kept),
        backward_peak_bytes=backward.peak_bytes,
    )


def _conformer_parts(shard: Shard, tower: Tower) -> list[Part]:
    """What a layer of a Conformer (arXiv 2005.08100) has beside a transformer's: an MLP, and a
    gate in front of a convolution of each channel. Products with relative positions, of which a
    chunk has few, are left out."""
    hidden, tokens, size = tower.hidden_size, shard.tokens, shard.element_bytes
    keep = shard.linear_input_bytes if shard.trains else 0
    into, into_back = linear(shard, "conv_in", tokens, hidden, 2 * hidden)
    out, out_back = linear(shard, "conv_out", tokens, hidden, hidden)
    full = tokens * hidden * size
    return [
        norm(shard, "mlp_norm", tokens, hidden, keep_output=keep),
        mlp_part(shard, tower.ffn_hidden_size),
        residual(shard, "mlp_residual"),
        norm(shard, "conv_norm", tokens, hidden, keep_output=keep),
        Part(
            (*into, Streaming("conv_gate_fwd", "elementwise", 3 * full, launches=2)),
            (Streaming("conv_gate_bwd", "elementwise", 5 * full, launches=2), *into_back),
            (Alloc("conv_projected", 2 * full),),
            forward_peak_bytes=full,
            backward_peak_bytes=3 * full,
        ),
        convolution(shard, "conformer", hidden),
        norm(shard, "conv_output_norm", tokens, hidden, keep_output=keep),
        Part(tuple(out), tuple(out_back), forward_peak_bytes=full, backward_peak_bytes=2 * full),
        residual(shard, "conv_residual"),
    ]


def _pooling_parts(shard: Shard, tower: Tower) -> list[Part]:
    """Keys and values of all patches, which one query an image reads, and what it is projected
    to."""
    hidden, size, one = tower.hidden_size, shard.element_bytes, replace(shard, sequence=1)
    forward, backward = linear(shard, "pool_kv", shard.tokens, hidden, 2 * hidden)
    out, out_back = linear(one, "pool_out", one.tokens, hidden, hidden)
    pairs = 2 * shard.tokens * hidden * size
    return [
        Part(
            (*forward, Streaming("pool_attention_fwd", "elementwise", pairs, 3), *out),
            (*out_back, Streaming("pool_attention_bwd", "elementwise", 2 * pairs, 5), *backward),
            (Alloc("pool_kv", pairs),) if shard.trains else (),
            forward_peak_bytes=pairs,
            backward_peak_bytes=2 * pairs,
        ),
        norm(one, "pool_norm", one.tokens, hidden, keep_output=size if shard.trains else 0),
        mlp_part(one, tower.ffn_hidden_size),
    ]


def stem_parts(
    shard: Shard, stem: Sequence[Convolution], tokens: int, name: str = "stem"
) -> list[Part]:
    """Convolutions as products, and their activations, of so many tokens; what each made is kept
    on either side of its activation."""
    parts = []
    for number, each in enumerate(stem):
        rows = tokens * each.places
        forward, backward = linear(shard, name, rows, each.inputs, each.channels)
        if not number:
            # Sound has no gradient.
            backward = [op for op in backward if getattr(op, "name", "") != "stem_dgrad"]
        made = rows * each.channels * shard.element_bytes
        parts.append(
            Part(
                (*forward, Streaming(f"{name}_activation", "elementwise", 2 * made)),
                (Streaming(f"{name}_activation_bwd", "elementwise", 3 * made), *backward),
                (Alloc(name, 2 * made),),
                forward_peak_bytes=made,
                backward_peak_bytes=made,
            )
        )
    return parts


def _projector(shard: Shard, tower: Tower) -> Part:
    tokens, size = shard.tokens // tower.merged, shard.element_bytes
    forward: list[Op] = []
    backward: list[Op] = []
    saved = []
    inputs = 0
    for one, other, gated in tower.projections:
        made, gradients = linear(shard, "projector", tokens, one, other)
        moved = tokens * other * size
        forward += [*made, Streaming("projector_activation", "elementwise", 2 * moved)]
        undone = Streaming("projector_activation_bwd", "elementwise", 3 * moved)
        backward = [undone, *gradients, *backward]
        # Both halves of a gated MLP have one input, and what they made is kept for their product.
        if shard.trains and (inputs != one or not gated):
            saved.append(Alloc("projector_input", tokens * one * size * tower.projectors))
        if gated:
            saved.append(Alloc("projector_gate", moved * tower.projectors))
        inputs = one
    widest = max(tower.projector, default=0) * tokens * size
    return Part(
        tuple(forward * tower.projectors),
        tuple(backward * tower.projectors),
        tuple(saved),
        forward_peak_bytes=widest,
        backward_peak_bytes=2 * widest,
    )


def _parameters(shard: Shard, tower: Tower) -> int:
    hidden = tower.hidden_size
    ends = (tower.patch_size + tower.positions + tower.linear_bias) * hidden + sum(
        each.weights for each in tower.stem
    )
    layer = layer_parameters(shard, _LAYER).total
    if tower.taps:
        # The second MLP, relative positions, the gate, the convolution and what follows it.
        columns = tower.ffn_hidden_size * (2 if tower.gated_mlp else 1)
        layer += hidden * (columns + tower.ffn_hidden_size + 4 * hidden + tower.taps + 3)
        layer += (columns + hidden) * tower.linear_bias
    # One norm fewer than a layer has, and the query.
    pool = (layer - hidden) * tower.pools
    return ends + tower.num_layers * layer + pool
