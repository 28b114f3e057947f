"""Multi-token prediction: what a module does before its transformer layer (DeepSeek-V3, 2.2)."""

from __future__ import annotations

import functools

from trainscout.simulators.predictor.workload.ir import Alloc, Block, Collective, Streaming
from trainscout.simulators.predictor.workload.linear import linear
from trainscout.simulators.predictor.workload.parameters import LocalParameters, norm_parameters
from trainscout.simulators.predictor.workload.part import Part, compose, norm
from trainscout.simulators.predictor.workload.shard import Shard


@functools.lru_cache(maxsize=1024)
def mtp_projection_blocks(shard: Shard) -> tuple[Block, Block]:
    """What precedes the layer of a multi-token-prediction module (DeepSeek-V3, equation 21).

    The normalised hidden state and the normalised embedding of the next token, side by side,
    are projected to one hidden state; Megatron shards the projection by columns and gathers
    its output.
    """
    hidden, local, size = shard.model.hidden_size, shard.local_tokens, shard.element_bytes
    forward, backward = linear(
        shard, "mtp_projection", shard.tokens, 2 * hidden, hidden // shard.tp, parallel="column"
    )
    joined = 2 * local * hidden * size
    if shard.tp > 1:
        whole = shard.tokens * hidden * size
        forward.append(Collective("mtp_gather", "all_gather", whole, "tp", shard.dtype))
        backward.insert(0, Collective("mtp_scatter", "reduce_scatter", whole, "tp", shard.dtype))
    projection = Part(
        (Streaming("mtp_concat", "memcpy", 2 * joined), *forward),
        (*backward, Streaming("mtp_split", "memcpy", 2 * joined)),
        (Alloc("mtp_input", joined),),
        forward_peak_bytes=joined,
        backward_peak_bytes=2 * joined,
    )
    norms = [norm(shard, name, local, hidden, keep_output=0) for name in ("hidden", "embedding")]
    return compose("mtp_projection", [*norms, projection])


def mtp_projection_parameters(shard: Shard) -> LocalParameters:
    """The two norms and the projection that start a module."""
    hidden = shard.model.hidden_size
    return LocalParameters(2 * norm_parameters(shard, hidden) + 2 * hidden * hidden // shard.tp)
