from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import ALTERNATING, SHARING, make_job
from tests.simulators.predictor.workload.blocks import flops
from trainscout.simulators.predictor.answer.flops import (
    _head_flops,
    attention_core_flops,
    layer_flops,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import Layer
from trainscout.simulators.predictor.workload.model.ends import first_blocks, head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard

STREAMS, HIDDEN = ALTERNATING.residual_streams, ALTERNATING.hidden_size


@pytest.mark.parametrize("layer", ALTERNATING.layer_kinds)
def test_products_are_those_that_flops_count(layer: Layer) -> None:
    shard = Shard.of(make_job(ALTERNATING))
    forward = layer_blocks(shard, layer, "none")[0]
    counted = layer_flops(ALTERNATING, shard.sequence, layer)
    core = attention_core_flops(ALTERNATING, shard.sequence)
    # Predictions are sums of a few streams, which no tensor core makes; inputs of all layers are
    # projected in front of them.
    assert ALTERNATING.per_layer_input is not None
    inputs = 2.0 * HIDDEN * ALTERNATING.per_layer_input.hidden_size
    elsewhere = 2.0 * HIDDEN * STREAMS**2 + inputs
    assert flops(forward) == (counted - core - elsewhere) * shard.tokens


def test_streams_are_made_and_undone_by_products() -> None:
    one, several = (Shard.of(make_job(model)) for model in (SHARING, ALTERNATING))
    each = 2.0 * (STREAMS - 1) * HIDDEN**2 * one.tokens
    for blocks in (first_blocks, head_blocks):
        for before, after in zip(blocks(one), blocks(several), strict=True):
            times = 1 if "backward" not in after.name else 2
            assert flops(after) - flops(before) == times * each
    assert _head_flops(ALTERNATING) - _head_flops(SHARING) == 2 * each / one.tokens


@pytest.mark.parametrize(
    "changes", [{"residual_streams": 1}, {"per_layer_input": None}, {"laurel_rank": 0}]
)
def test_streams_and_inputs_go_with_it(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="laurel_rank"):
        replace(ALTERNATING, **changes).check()
