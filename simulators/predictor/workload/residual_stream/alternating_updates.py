"""Alternating updates (AltUp) and a learned residual (LAuReL), as Gemma 3n has them: a layer works
on one of the residual's streams, what the others become is predicted before it and corrected
behind it, and beside attention a low-rank product of the normed stream is added.

Written as operations, as the model's own code is, every step reads and writes all streams;
compiled, a prediction reads and writes them once, and so does a correction.
"""

from __future__ import annotations

from trainscout.simulators.predictor.workload.elementwise import norm_ops
from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.linear import linear
from trainscout.simulators.predictor.workload.part import Part, hidden_norm
from trainscout.simulators.predictor.workload.shard import Shard


def predict_parts(shard: Shard) -> list[Part]:
    """In front of a layer: each stream's prediction, a sum of all by weights of the token."""
    streams, one = shard.model.residual_streams, _one(shard)
    # A copy for the product, the product, the sum with what was, and the order of before.
    moved = (9 if _written(shard) else 2) * streams * one
    saved = (Alloc("streams_before", streams * one),)
    return _routed(shard, "predict", streams**2, moved, saved, 3)


def correct_parts(shard: Shard) -> list[Part]:
    """Behind a layer: each stream's difference to it, by a weight of the token."""
    streams, one = shard.model.residual_streams, _one(shard)
    moved = ((6 * streams + 9) if _written(shard) else 2 * streams + 1) * one
    saved = (Alloc("streams_difference", streams * one),)
    return _routed(shard, "correct", streams, moved, saved, 6)


def laurel_part(shard: Shard) -> Part:
    """Of attention's normed input: two products, a norm, and two sums."""
    model = shard.model
    assert model.laurel_rank is not None
    narrow, elements = model.laurel_rank, shard.local_tokens * model.hidden_size
    left, left_back = linear(shard, "laurel_left", shard.tokens, model.hidden_size, narrow)
    right, right_back = linear(shard, "laurel_right", shard.tokens, narrow, model.hidden_size)
    normed, undone = norm_ops(shard, "laurel_norm", elements)
    moved = (8 if _written(shard) else 4) * _one(shard)
    return Part(
        (*left, *right, *normed, Streaming("laurel_sum", "elementwise", moved, 3)),
        (Streaming("laurel_sum_bwd", "elementwise", moved, 3), *undone, *right_back, *left_back),
        (
            Alloc("laurel_latent", shard.tokens * narrow * shard.element_bytes * shard.trains),
            Alloc("laurel_norm_input", _one(shard)),
        ),
        backward_peak_bytes=2 * _one(shard),
    )


def others_part(shard: Shard) -> Part:
    """What a layer's own input adds to all streams but the first."""
    moved = 3 * (shard.model.residual_streams - 1) * _one(shard)
    grads = Streaming("streams_add_bwd", "reduce", moved)
    return Part((Streaming("streams_add", "elementwise", moved),), (grads,))


def ends_part(shard: Shard, name: str) -> Part:
    """Behind the embedding, a projection for each further stream, scaled to the first one's size;
    the same in front of the final norm, where they are averaged."""
    model, one = shard.model, _one(shard)
    more = model.residual_streams - 1
    forward: list[Op] = []
    backward: list[Op] = []
    for _ in range(more):
        made, gradients = linear(shard, name, shard.tokens, model.hidden_size, model.hidden_size)
        forward += made
        backward += gradients
    # Squares, their means, the quotient, and all streams put together.
    forward.append(Streaming(f"{name}_scale", "elementwise", (7 * more + 4) * one, 8 * more + 1))
    backward.insert(
        0, Streaming(f"{name}_scale_bwd", "elementwise", (12 * more + 4) * one, 16 * more + 1)
    )
    return Part(
        tuple(forward),
        tuple(backward),
        (Alloc(f"{name}_streams", 2 * more * one),),
        forward_peak_bytes=(more + 1) * one,
        backward_peak_bytes=(more + 1) * one,
    )


def _routed(
    shard: Shard, name: str, weights: int, moved: int, saved: tuple[Alloc, ...], launches: int
) -> list[Part]:
    """Weights of a token, from the normed stream by way of a few channels, and their use."""
    streams, hidden = shard.model.residual_streams, shard.model.hidden_size
    tokens, dtype = shard.local_tokens, shard.dtype
    shapes = (("router", streams, hidden), ("weights", weights, streams))
    forward: list[Op] = []
    backward: list[Op] = []
    for word, columns, rows in shapes:
        own = f"{name}_{word}"
        forward.append(Gemm(f"{own}_fwd", tokens, columns, rows, dtype))
        gradients: list[Op] = [Gemm(f"{own}_dgrad", tokens, rows, columns, dtype, layout="NN")]
        if shard.trains:
            gradients.append(Gemm(f"{own}_wgrad", columns, rows, tokens, dtype, layout="NT"))
        backward = gradients + backward
    count = launches if _written(shard) else 1
    small = tokens * (streams + weights) * 4 * (4 if _written(shard) else 1)
    peak = shard.model.residual_streams * _one(shard)
    used = Part(
        (
            *forward,
            Streaming(f"{name}_small", "elementwise", small, 3 if _written(shard) else 1),
            Streaming(f"{name}_streams", "elementwise", moved, count),
        ),
        (Streaming(f"{name}_streams_bwd", "elementwise", 2 * moved, 2 * count), *backward),
        (*saved, Alloc(f"{name}_weights", tokens * (streams + weights) * 4)),
        forward_peak_bytes=peak,
        backward_peak_bytes=2 * peak,
    )
    return [hidden_norm(shard, f"{name}_norm", 0), used]


def _written(shard: Shard) -> bool:
    return shard.fusion == "eager"


def _one(shard: Shard) -> int:
    """Bytes of one stream."""
    return shard.local_tokens * shard.model.hidden_size * shard.element_bytes
