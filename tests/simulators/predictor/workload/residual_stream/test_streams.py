"""Attention to compressed keys and a residual of several streams (DeepSeek-V4)."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import MLA_MOE, MOE, STREAMS, make_job
from tests.simulators.predictor.workload.blocks import flops
from trainscout.simulators.predictor.answer.flops import _skipped_flops, layer_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import AttentionMixer, Index, Layer, Mixer
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Attention
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.model.ends import first_blocks, head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.parameters import layer_parameters
from trainscout.simulators.predictor.workload.shard import Shard

ONE = replace(STREAMS, residual_streams=1)


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("layer", STREAMS.layer_kinds)
def test_products_are_those_that_flops_count(layer: Layer, *, mixes: bool) -> None:
    model = replace(STREAMS, mixes_streams=mixes)
    shard = Shard.of(make_job(model))
    forward = layer_blocks(shard, layer, "none")[0]
    counted = layer_flops(model, shard.sequence, layer)
    core = 2 * _skipped_flops(model, shard.sequence, layer)
    mixer = STREAMS.kinds[layer.mixer].compressed
    assert mixer is not None
    scores = 0.0
    if (index := mixer.index) is not None:
        # The convention counts scores of all compressed keys, of which a causal half is made.
        scores = shard.sequence / mixer.rate * index.heads * index.dim
    assert flops(forward) == (counted - core - scores) * shard.tokens


@pytest.mark.parametrize("layer", STREAMS.layer_kinds)
def test_a_recomputed_layer_keeps_every_stream(layer: Layer) -> None:
    shard = Shard.of(make_job(STREAMS))
    several, one = (
        layer_blocks(replace(shard, model=model), layer, "full")[0] for model in (STREAMS, ONE)
    )
    assert several.saved_bytes == 4 * one.saved_bytes


@pytest.mark.parametrize("layer", STREAMS.layer_kinds)
def test_streams_of_a_recomputed_layer_are_held_once(layer: Layer) -> None:
    """What mixes them keeps them, whatever the norms behind it keep."""
    training = {"fusion": "eager", "fused_norm": False, "recompute_stops_early": True}
    shard = Shard.of(make_job(STREAMS, training=training))
    forward, backward = layer_blocks(shard, layer, "none")
    _, again = layer_blocks(shard, layer, "full")
    streams = shard.local_tokens * STREAMS.residual_width * shard.stream_bytes
    assert again.peak_bytes == forward.saved_bytes + backward.peak_bytes - streams


@pytest.mark.parametrize(("gates", "width"), [({"gated": True}, 24), ({"head_gates": True}, 1)])
def test_gates_beside_latent_queries_are_a_projection(gates: dict[str, bool], width: int) -> None:
    """Hy-V4 and Ling's: of as many channels as values have, or of one a head."""
    plain = replace(
        MLA_MOE, layers="12*own/dense", kinds={"own": Mixer(attention=AttentionMixer())}, moe=None
    )
    gated = replace(plain, kinds={"own": Mixer(attention=AttentionMixer(**gates))})
    made = width * MLA_MOE.num_heads * MLA_MOE.hidden_size
    (layer,) = gated.layer_kinds
    found = []
    for model in (plain, gated):
        model.check()
        shard = Shard.of(make_job(model))
        blocks = layer_blocks(shard, layer, "none")
        assert blocks[0].saved_bytes == -blocks[1].saved_bytes
        counts = layer_parameters(shard, layer).total, layer_flops(model, 64, layer)
        found.append((*counts, flops(blocks[0]) / shard.tokens))
    assert [one - other for one, other in zip(*reversed(found), strict=True)] == [
        made,
        2 * made,
        2 * made,
    ]


def test_queries_see_a_window_and_what_is_compressed() -> None:
    shard, seen = Shard.of(make_job(STREAMS)), {}
    for layer in STREAMS.layer_kinds:
        forward = layer_blocks(shard, layer, "none")[0]
        (core,) = (op for op in forward.ops if isinstance(op, Attention))
        assert core.kv_heads == 1
        assert core.estimated
        seen[layer.mixer] = core.seq_k
    s = shard.sequence
    near = 8 - 8 * 7 / (2 * s)
    assert seen["near"] == round(near)
    assert seen["compressed"] == round(near + s / 32)
    assert seen["sparse"] == round(near + 4)


def test_streams_cost_their_projections_and_travel_between_stages() -> None:
    h = MOE.hidden_size
    shards = [Shard.of(make_job(model)) for model in (STREAMS, ONE)]
    layer = STREAMS.layer_kinds[0]
    held = [layer_parameters(shard, layer).total for shard in shards]
    assert held[0] - held[1] == 2 * (24 * (4 * h + 1) + 3)
    sent = [build_workload(make_job(model, pp=2)) for model in (STREAMS, ONE)]
    assert sent[0].stage_boundary_bytes == 4 * sent[1].stage_boundary_bytes
    for ends in (first_blocks, head_blocks):
        forward, backward = ends(shards[0])
        assert forward.saved_bytes == -backward.saved_bytes
    simulator = ReplaySimulator()
    times = [simulator.without_error_bar(make_job(model)).step_time_s for model in (STREAMS, ONE)]
    assert times[0] > times[1]


def test_what_cannot_be_is_refused_by_field() -> None:
    for changes, field in (({"tp": 2, "sp": True}, "tp"), ({"cp": 2}, "cp")):
        violation = why_invalid(make_job(STREAMS, **changes))
        assert violation is not None
        assert violation.field == field
    near = STREAMS.kinds["near"]
    assert near.compressed is not None
    indexed = replace(near, compressed=replace(near.compressed, index=Index(4, 16, 4)))
    for model, field in (
        (replace(STREAMS, kinds=STREAMS.kinds | {"near": indexed}), "kinds.near.compressed.index"),
        (replace(STREAMS, residual_streams=0), "residual_streams"),
        (replace(STREAMS, residual_streams=100), "residual_streams"),
    ):
        with pytest.raises(InputError) as caught:
            model.check()
        assert caught.value.field == f"model.{field}"
