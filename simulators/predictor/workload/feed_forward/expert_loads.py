"""How many tokens a rank's experts receive: capacity, imbalance, hot experts."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.moe.loads import dropped_share, rank_imbalance
from trainscout.simulators.predictor.moe.loads import rank_loads as loads_of_ranks
from trainscout.simulators.predictor.moe.router import Router
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload.shard import Shard


def routed_rows(shard: Shard) -> int:
    """Token copies one rank sends to experts, after the capacity limit if there is one."""
    moe = shard.moe
    rows = shard.local_tokens * moe.top_k
    if moe.capacity_factor is None:
        return rows
    capacity = math.ceil(rows / moe.num_experts * moe.capacity_factor) * moe.num_experts
    if moe.padded:
        # Every expert is padded or cut to its capacity.
        return capacity
    return min(capacity, round(rows * (1 - dropped_routings(shard))))


def busiest(shard: Shard, amount: int) -> int:
    """What of ``amount``, a rank's mean, reaches the rank with the most popular experts."""
    return amount if shard.moe.padded else round(amount * _imbalance(shard))


def _imbalance(shard: Shard) -> float:
    """How many times the mean the busiest rank receives, on average over the layers."""
    moe = shard.moe
    if not moe.routed:
        # Nobody receives more than the capacity of its experts, or than all there is.
        most = moe.num_experts if shard.pads_experts else shard.ep
        return max(1.0, min(moe.load_imbalance, most, moe.capacity_factor or math.inf))
    layers = _expert_layers(shard.model)
    return rank_imbalance(_of_sources(shard), shard.ep, layers, moe.capacity_factor)


def _of_sources(shard: Shard) -> Router:
    """The routings of all ranks' tokens; capacity counts by source: each cuts its own."""
    sources = 1 if shard.moe.capacity_factor is not None else shard.ep * shard.etp
    return _routing(shard.moe, shard.local_tokens * sources)


def rank_loads(shard: Shard, num_layers: int) -> tuple[tuple[float, ...], ...]:
    """Share of all tokens that each expert-parallel rank receives, in up to ``num_layers`` layers
    that differ; empty when all receive as many."""
    moe, ep = shard.model.moe, shard.ep
    if moe is None or ep == 1 or moe.padded:
        return ()
    if moe.routed:
        router = _of_sources(shard)
        layers = min(num_layers, _expert_layers(shard.model))
        return tuple(
            loads_of_ranks(router, ep, layer, moe.capacity_factor) for layer in range(layers)
        )
    if (imbalance := _imbalance(shard)) == 1:
        return ()
    most = min(1.0, imbalance / ep)
    return ((most, *[(1 - most) / (ep - 1)] * (ep - 1)),)


def dropped_routings(shard: Shard) -> float:
    """Share of all routings that hot experts at their capacity drop; nothing else is known to."""
    moe = shard.model.moe
    if moe is None or not moe.routed or moe.capacity_factor is None:
        return 0.0
    router = _routing(moe, shard.local_tokens)
    return dropped_share(router, moe.capacity_factor, _expert_layers(shard.model))


def _routing(moe: Moe, tokens: int) -> Router:
    hot = moe.hot_ratio, moe.hot_weight
    return Router(moe.num_experts, tokens, moe.top_k, *hot, measured=moe.measured_layers or None)


def _expert_layers(model: Model) -> int:
    return sum(model.is_moe_layer(layer) for layer in range(model.num_layers))
