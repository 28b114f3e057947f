"""Who sends how much to whom: routings by source, expert and destination."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_positive,
    require_whole,
)

from .router import Counts, Experts, Router, expert_loads


def token_bounds(tokens: int, num_nodes: int) -> Counts:
    """The first token of each node and the end, (num_nodes + 1,): neighbours in the sequence
    share a node, and nodes hold as many as each other, give or take one."""
    return np.arange(num_nodes + 1) * tokens // num_nodes


def copies_by_expert(chosen: Experts, num_experts: int, num_nodes: int) -> Counts:
    """Copies of tokens each node sends to each expert, (num_nodes, num_experts).

    Args:
        chosen: experts of each token, (tokens, top_k).
    """
    parts = np.split(chosen, token_bounds(len(chosen), num_nodes)[1:-1])
    return np.stack([np.bincount(part.ravel(), minlength=num_experts) for part in parts])


def cut_to_capacity(copies: Counts, tokens: int, top_k: int, capacity_factor: float) -> Counts:
    """What is left of ``copies`` when each expert takes from each node at most its even share,
    times the factor, rounded up; the rest is dropped (Lepikhin et al. 2020, section 2.2).

    Args:
        copies: by source and expert, (num_nodes, num_experts).
        tokens: tokens on all nodes.

    Raises:
        InputError: for a factor that is not positive.
    """
    require_positive("capacity_factor", capacity_factor)
    nodes, experts = copies.shape
    held = np.diff(token_bounds(tokens, nodes))
    limits = np.ceil(held * top_k / experts * capacity_factor).astype(np.int64)
    kept: Counts = np.minimum(copies, limits[:, None])
    return kept


def copies_between(copies: Counts) -> Counts:
    """Copies from each node to each node, (num_nodes, num_nodes).

    Args:
        copies: by source and expert, (num_nodes, num_experts); node ``i`` holds the ``i``-th of
            as many equal runs of experts.
    """
    nodes, experts = copies.shape
    by_node: Counts = copies.reshape(nodes, nodes, experts // nodes).sum(axis=2)
    return by_node


@lru_cache(maxsize=4096)
def rank_imbalance(
    router: Router, ep: int, num_layers: int = 1, capacity_factor: float | None = None
) -> float:
    """Routings of the busiest of ``ep`` expert-parallel ranks over their mean, at least 1.

    Every rank waits for the busiest in every layer, and layers have favourites of their own, so
    this is the mean over ``num_layers`` of each layer's ratio. ``router.seqlen`` are the tokens
    of the whole expert-parallel group; with a capacity, which counts by source, of one rank: what
    is over it is dropped. Experts lie on ranks in equal runs, in order.

    Raises:
        InputError: for a router that cannot be, or an ``ep`` that does not divide its experts.
    """
    require_whole("num_layers", num_layers)
    return float(
        np.mean([ep * max(rank_loads(router, ep, n, capacity_factor)) for n in range(num_layers)])
    )


@lru_cache(maxsize=4096)
def rank_loads(
    router: Router, ep: int, layer: int = 0, capacity_factor: float | None = None
) -> tuple[float, ...]:
    """Share of a layer's routings, those that are not dropped, that each of ``ep`` expert-parallel
    ranks receives."""
    router.check()
    require_whole("ep", ep)
    if router.num_experts % ep:
        allowed = f"a divisor of num_experts={router.num_experts}"
        raise InputError("ep", ep, "does not divide the experts", allowed)
    loads = expert_loads(router, layer)
    if capacity_factor is not None:
        held = router.seqlen, router.top_k, capacity_factor
        loads = cut_to_capacity(loads[None, :], *held)[0]
    by_rank = loads.reshape(ep, -1).sum(axis=1)
    return tuple((by_rank / by_rank.sum()).tolist())


@lru_cache(maxsize=4096)
def dropped_share(router: Router, capacity_factor: float, num_layers: int = 1) -> float:
    """Share of all routings that experts at their capacity drop, the mean over ``num_layers``.

    ``router.seqlen`` are the tokens of one rank: capacity counts by source.

    Raises:
        InputError: for a router that cannot be or a capacity factor that is not positive.
    """
    router.check()
    require_whole("num_layers", num_layers)
    tokens, top_k = router.seqlen, router.top_k
    kept = 0
    for layer in range(num_layers):
        loads = expert_loads(router, layer)[None, :]
        kept += int(cut_to_capacity(loads, tokens, top_k, capacity_factor).sum())
    return 1 - kept / (tokens * top_k * num_layers)
