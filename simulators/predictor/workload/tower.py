"""Encoders in front of the embedding: patches, layers, the projection to the language model.

A tower keeps its activations, whatever the layers behind it do, and has no sequence or context
parallelism: each rank encodes the images of its whole sequences.
"""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.question.layers import DENSE, AttentionMixer, Layer, Mixer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tower import Tower
from trainscout.simulators.predictor.question.tuning import PROJECTORS, TOWERS
from trainscout.simulators.predictor.workload.ir import Alloc, Op, Streaming
from trainscout.simulators.predictor.workload.layer import layer_parts
from trainscout.simulators.predictor.workload.linear import linear
from trainscout.simulators.predictor.workload.parameters import LocalParameters, layer_parameters
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard

_LAYER = Layer("tower", DENSE)
_MIXER = Mixer(attention=AttentionMixer(causal=False))


def tower_parts(shard: Shard) -> list[Part]:
    """Every tower of the shard's model, one after another. A frozen one has no backward pass, and
    keeps nothing; its projector has none where it is frozen too."""
    parts = []
    for tower in shard.model.towers:
        own = _shard(shard, tower)
        encoder, projector = _parts(own, tower), _projector(_projecting(shard, own), tower)
        frozen = [not own.trains, {TOWERS, PROJECTORS} <= set(shard.frozen)]
        parts += [each.forward_only for each in encoder] if frozen[0] else encoder
        parts.append(projector.forward_only if frozen[1] else projector)
    return parts


def _projecting(shard: Shard, tower: Shard) -> Shard:
    return replace(tower, trains=PROJECTORS not in shard.frozen)


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
        vocab_size=1,
        sequence_length=tower.patches,
        source="",
        gated_mlp=tower.gated_mlp,
        normalization=tower.normalization,
        position="none" if tower.positions else "rope",
        linear_bias=tower.linear_bias,
        qkv_bias=tower.linear_bias,
        dropout=False,
        layers=f"{tower.num_layers}*tower/dense",
        kinds={"tower": _MIXER},
    )
    return replace(
        shard,
        model=model,
        batch=shard.batch * tower.images,
        sequence=tower.patches,
        attended=tower.patches,
        lora=None,
        trains=TOWERS not in shard.frozen,
        cp=1,
        sp=False,
        tp_comm_overlap=False,
        keeps_gathered=False,
        repeats_kv=False,
    )


def _parts(shard: Shard, tower: Tower) -> list[Part]:
    layers = [*layer_parts(shard, _LAYER)] * tower.num_layers
    hidden, size = tower.hidden_size, shard.element_bytes
    if not tower.patch_size:
        return layers
    forward, backward = linear(shard, "patches", shard.tokens, tower.patch_size, hidden)
    pixels = shard.tokens * tower.patch_size * size
    if tower.stem:
        return [*_stem(shard, tower), Part(tuple(forward), tuple(backward)), *layers]
    patches = Part(
        tuple(forward),
        # Images have no gradient.
        tuple(op for op in backward if getattr(op, "name", "") != "patches_dgrad"),
        (Alloc("pixels", pixels),),
        forward_peak_bytes=shard.tokens * hidden * size,
        backward_peak_bytes=shard.tokens * hidden * size,
    )
    return [patches, *layers]


def _stem(shard: Shard, tower: Tower) -> list[Part]:
    """Convolutions as products, and their activations; what each made is kept on either side of
    its activation."""
    parts = []
    for number, each in enumerate(tower.stem):
        rows = shard.tokens * each.places
        forward, backward = linear(shard, "stem", rows, each.inputs, each.channels)
        if not number:
            # Sound has no gradient.
            backward = [op for op in backward if getattr(op, "name", "") != "stem_dgrad"]
        made = rows * each.channels * shard.element_bytes
        parts.append(
            Part(
                (*forward, Streaming("stem_activation", "elementwise", 2 * made)),
                (Streaming("stem_activation_bwd", "elementwise", 3 * made), *backward),
                (Alloc("stem", 2 * made),),
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
    ends = (tower.patch_size + tower.positions + tower.linear_bias) * hidden + tower.stem_weights
    layers = tower.num_layers * layer_parameters(shard, _LAYER).total
    return ends + layers
