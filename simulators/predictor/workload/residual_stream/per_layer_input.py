"""Per-layer embeddings (Gemma 3n, Gemma 4): what a second table and a projection of the embedding
make for all layers at once, and what each layer adds of its share."""

from __future__ import annotations

from trainscout.simulators.predictor.question.model import PerLayerInput
from trainscout.simulators.predictor.workload.elementwise import norm_ops
from trainscout.simulators.predictor.workload.ir import Alloc, Streaming
from trainscout.simulators.predictor.workload.linear_layers.linear import linear
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard

from .embedding import table_gradient


def table_part(shard: Shard, inputs: PerLayerInput) -> Part:
    """Behind the word embedding: a lookup of all layers' vectors, the projection of the embedding
    to as many, its norm, and the scaled sum of both, which the layers keep."""
    model, size = shard.model, shard.element_bytes
    width = model.num_layers * inputs.hidden_size
    elements = shard.tokens * width
    made, gradients = linear(shard, "layer_inputs", shard.tokens, model.hidden_size, width)
    normed, undone = norm_ops(shard, "layer_inputs_norm", elements)
    backward = [
        Streaming("layer_inputs_sum_bwd", "elementwise", 3 * elements * size),
        *undone,
        *gradients,
    ]
    table = inputs.vocab_size * width
    if shard.trains:
        backward = [*table_gradient(shard, "layer_table", elements, table), *backward]
    kept = shard.tokens * model.hidden_size * size if shard.trains else 0
    return Part(
        (
            Streaming("layer_table_fwd", "embedding", 2 * elements * size),
            *made,
            *normed,
            # The scaled projection and the scaled sum.
            Streaming("layer_inputs_sum", "elementwise", 5 * elements * size, launches=2),
        ),
        tuple(backward),
        (
            Alloc("layer_inputs", elements * size),
            Alloc("layer_inputs_norm_input", elements * size),
            Alloc("layer_inputs_source", kept),
        ),
        forward_peak_bytes=elements * size,
        # Gradients of all layers' vectors gather while the layers run backward.
        backward_peak_bytes=(2 * elements + table * shard.trains) * size,
    )


def layer_part(shard: Shard, inputs: PerLayerInput) -> Part:
    """At a layer's end, between its two norms' residuals: a gate of the hidden state, times the
    layer's vector, projected back."""
    hidden, size = shard.model.hidden_size, shard.element_bytes
    narrow = shard.tokens * inputs.hidden_size
    gate, gate_back = linear(shard, "layer_input_gate", shard.tokens, hidden, inputs.hidden_size)
    back, back_back = linear(shard, "layer_input_out", shard.tokens, inputs.hidden_size, hidden)
    wide = shard.tokens * hidden * size
    return Part(
        (
            *gate,
            Streaming("layer_input_product", "elementwise", 5 * narrow * size, launches=2),
            *back,
        ),
        (
            *back_back,
            # Of the gate and, added to what other layers gave, of the vectors.
            Streaming("layer_input_product_bwd", "elementwise", 9 * narrow * size, launches=4),
            *gate_back,
        ),
        (
            Alloc("layer_input_hidden", wide if shard.trains else 0),
            Alloc("layer_input_gate", 3 * narrow * size),
        ),
        forward_peak_bytes=wide,
        backward_peak_bytes=2 * wide,
    )
