"""Who sends how much to whom: routings by source, expert and destination."""

from __future__ import annotations

import numpy as np

from trainscout.simulators.predictor.question.errors import require_positive

from .router import Counts, Experts


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
