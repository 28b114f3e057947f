"""Layers that reuse keys and values, are wide, and have inputs of their own (Gemma 4 E2B)."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, SHARING, make_job
from tests.simulators.predictor.workload.blocks import flops
from trainscout.simulators.predictor.answer.flops import attention_core_flops, layer_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import Layer
from trainscout.simulators.predictor.question.model import Model, PerLayerInput
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.ir import Alloc, Attention, Block
from trainscout.simulators.predictor.workload.model.ends import first_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.parameters import (
    embedding_parameters,
    layer_parameters,
)
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_blocks
from trainscout.simulators.predictor.workload.shard import Shard

INPUTS = SHARING.per_layer_input
assert INPUTS is not None
REUSING, WIDE = Layer("reusing", "dense"), Layer("reusing", "dense", 2 * SHARING.ffn_hidden_size)
OWN = Layer("attention", "dense")


def kept(block: Block, tag: str) -> int:
    return sum(op.bytes for op in block.ops if isinstance(op, Alloc) and op.tag == tag)


def test_parameters_are_those_of_the_closed_form() -> None:
    h, f, d = LLAMA.hidden_size, LLAMA.ffn_hidden_size, INPUTS.hidden_size
    shard = Shard.of(make_job(SHARING))
    own, reusing, wide = (layer_parameters(shard, each).total for each in (OWN, REUSING, WIDE))
    keys_and_values = 2 * LLAMA.kv_heads * LLAMA.qk_head_dim
    plain = layer_parameters(Shard.of(make_job(LLAMA)), OWN).total
    assert own == plain + 2 * h * d + h
    keys_norm = LLAMA.qk_head_dim
    assert own - reusing == h * keys_and_values + keys_norm
    assert wide - reusing == 3 * h * f
    without = embedding_parameters(Shard.of(make_job(LLAMA))).total
    assert embedding_parameters(shard).total - without == (1000 + h) * 4 * d + d


def test_products_are_those_that_flops_count() -> None:
    shard = Shard.of(make_job(SHARING))
    tokens, sequence = shard.tokens, shard.sequence
    forward = flops(first_blocks(shard)[0])
    for layer in SHARING.pattern:
        forward += flops(layer_blocks(shard, layer, "none")[0])
    counted = sum(layer_flops(SHARING, sequence, layer) for layer in SHARING.pattern)
    core = 4 * attention_core_flops(SHARING, sequence)
    assert forward == (counted - core) * tokens


def test_reused_keys_and_values_are_attended_to_and_kept_once() -> None:
    shard = Shard.of(make_job(SHARING))
    own, reusing = (layer_blocks(shard, each, "none")[0] for each in (OWN, REUSING))
    cores = [[op for op in each.ops if isinstance(op, Attention)] for each in (own, reusing)]
    assert cores[0] == cores[1]
    assert kept(own, "k") > kept(reusing, "k") == kept(reusing, "v") == 0


def test_all_layers_inputs_are_made_and_kept_behind_the_embedding() -> None:
    shard = Shard.of(make_job(SHARING))
    forward, backward = first_blocks(shard)
    assert kept(forward, "layer_inputs") == shard.tokens * 4 * INPUTS.hidden_size * 2
    assert forward.saved_bytes == -backward.saved_bytes
    assert len(forward.ops) > len(embedding_blocks(shard)[0].ops)


def test_no_framework_cuts_or_sends_what_layers_share() -> None:
    for changes, field in (({"pp": 2}, "pp"), ({"tp": 2}, "tp")):
        violation = why_invalid(make_job(SHARING, **changes))
        assert violation is not None
        assert violation.field == field
    # Without inputs of their own, layers can be cut and not sent.
    reusing = replace(SHARING, per_layer_input=None)
    assert why_invalid(make_job(reusing, tp=2)) is None
    assert why_invalid(make_job(reusing, pp=2)) is not None


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (replace(SHARING, layers="4*attention/0"), "model.layers"),
        (
            replace(SHARING, per_layer_input=PerLayerInput(0, 16)),
            "model.per_layer_input.vocab_size",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_field(model: Model, field: str) -> None:
    with pytest.raises(InputError) as caught:
        model.check()
    assert caught.value.field == field
