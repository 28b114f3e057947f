"""One transformer layer as a forward and a backward block, for each recompute mode."""

from __future__ import annotations

import functools

from trainscout.simulators.predictor.question.recipe import DEFAULT_RECOMPUTE_MODULES
from trainscout.simulators.predictor.workload.attention import attention_parts
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.mlp import mlp_part
from trainscout.simulators.predictor.workload.moe import moe_parts
from trainscout.simulators.predictor.workload.part import (
    ATTENTION_RESIDUAL,
    Part,
    checkpointed,
    compose,
    norm,
    residual,
)
from trainscout.simulators.predictor.workload.recompute import OPERATIONS, recompute_parts
from trainscout.simulators.predictor.workload.shard import Shard


@functools.lru_cache(maxsize=4096)
def layer_blocks(
    shard: Shard, is_moe: bool, recompute: str, modules: str = DEFAULT_RECOMPUTE_MODULES
) -> tuple[Block, Block]:
    """Forward and backward of one layer.

    Args:
        shard: local sizes.
        is_moe: whether the MLP is a mixture of experts.
        recompute: ``none``, ``selective`` or ``full``.
        modules: what ``selective`` recomputes, joined by ``+``.
    """
    parts = _layer_parts(shard, is_moe)
    name = "moe_layer" if is_moe else "layer"
    if recompute == "full":
        input_bytes = shard.local_tokens * shard.model.hidden_size * shard.element_bytes
        return checkpointed(name, parts, input_bytes, stops_early=shard.recompute_stops_early)
    if recompute == "selective":
        chosen = frozenset(modules.split("+"))
        at_once = OPERATIONS in chosen
        return compose(name, recompute_parts(shard, parts, chosen), rerun_at_once=at_once)
    return compose(name, parts)


def _layer_parts(shard: Shard, is_moe: bool) -> list[Part]:
    model = shard.model
    mlp = moe_parts(shard) if is_moe else [mlp_part(shard, model.ffn_hidden_size)]
    return [
        *attention_parts(shard),
        residual(shard, ATTENTION_RESIDUAL),
        norm(
            shard,
            "mlp_norm",
            shard.local_tokens,
            model.hidden_size,
            keep_output=shard.column_input_bytes,
        ),
        *mlp,
        residual(shard, "mlp_residual"),
    ]
