"""How NCCL moves each kind of communication: rings, trees, two levels, pairs.

``members`` are a communicator's GPUs by node, as NCCL counts them, in its own order. Every pattern
moves, per byte of NCCL's size, what the algorithm moves: tests count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

from .transfers import Floats, Transfers, together, transfers

Members = Sequence[Sequence[int]]
ALGORITHMS = ("ring", "tree", "hierarchical", "pat")
# NCCL's algorithms by what moves; those that reduce inside the node first have two levels.
OF_NCCL = {
    "ring": "ring",
    "tree": "tree",
    "pat": "pat",
    "nvls": "hierarchical",
    "nvls_tree": "hierarchical",
    # Rings of nodes in order leave and enter each leaf once, as the trees of switches that sum do.
    "collnet_direct": "hierarchical",
    "collnet_chain": "hierarchical",
    "alltoall": "pairs",
}
# Times that the data goes round a ring.
_ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


def by_node(ranks: Sequence[int], node: int) -> list[list[int]]:
    """Ranks, which are GPU numbers, grouped by nodes of so many."""
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank // node, []).append(rank)
    return list(nodes.values())


def pattern(
    kind: str, members: Members, *, algorithm: str = "ring", channels: int = 1
) -> Transfers:
    """The transfers of one collective.

    Args:
        kind: all_reduce, all_gather, reduce_scatter or all_to_all.
        members: GPUs by node.
        algorithm: how an all-reduce goes (``pat``: how another does); else rings or pairs.
        channels: rings or trees side by side, each with an equal part of the data.

    Raises:
        InputError: for an unknown kind or algorithm, or fewer than two members.
    """
    require_positive("channels", channels)
    if sum(map(len, members)) < 2:
        raise InputError("members", list(members), "are too few", "two or more GPUs")
    if kind == "all_to_all":
        return all_to_all(members)
    require_choice("collective.kind", kind, (*_ROUNDS, "all_to_all"))
    require_choice("algorithm", algorithm, ALGORITHMS)
    if algorithm == "tree" and kind == "all_reduce":
        return tree(members, channels)
    if algorithm == "hierarchical" and kind == "all_reduce":
        return hierarchical(members)
    if algorithm == "pat":
        return aggregated_trees(members)
    return ring(members, _ROUNDS[kind], channels)


def ring(members: Members, rounds: float, channels: int) -> Transfers:
    """Rings through all members, each leaving nodes at another GPU.

    A rank sends ``rounds (n - 1) / n`` bytes per byte, an equal part over every channel.
    """
    ranks = sum(map(len, members))
    share = rounds * (ranks - 1) / ranks / channels
    parts = []
    for channel in range(channels):
        order = [gpu for node in members for gpu in _rotated(node, channel)]
        pairs = list(zip(order, order[1:] + order[:1], strict=True))
        parts.append(transfers(pairs, share, channel))
    return together(parts)


def aggregated_trees(members: Members) -> Transfers:
    """NCCL's PAT: what each member has goes down a binomial tree from it, farthest first, so that
    half of all goes to the next (Jeaugey 2025, arXiv:2506.20252); a reduce-scatter is the same
    backwards."""
    ranks = [gpu for node in members for gpu in node]
    count = len(ranks)
    # Who is so far from the tree's root has it from one as near as its lowest bit.
    steps = np.bincount([place & -place for place in range(1, count)])
    return together(
        [
            transfers(list(zip(ranks, ranks[step:] + ranks[:step], strict=True)), used / count)
            for step, used in enumerate(steps.tolist())
            if used
        ]
    )


def tree(members: Members, channels: int) -> Transfers:
    """NCCL's double binary trees over nodes, chains inside them: up to reduce, down to spread.

    Each tree of a pair carries half of a channel's data (Sanders, Speck, Träff 2009).
    """
    parts = []
    for channel in range(channels):
        lines = [_rotated(node, channel) for node in members]
        for second in (False, True):
            up = _tree_edges(lines, mirrored=second)
            down = [(parent, child) for child, parent in up]
            parts.append(transfers(up + down, 0.5 / channels, 2 * channel + second))
    return together(parts)


def hierarchical(members: Members) -> Transfers:
    """Reduce-scatter inside each node, all-reduce of equal places across nodes, all-gather inside.

    Raises:
        InputError: for nodes with different numbers of members.
    """
    inside = len(members[0])
    if any(len(node) != inside for node in members):
        raise InputError("members", list(members), "differ in number", "as many in every node")
    phases = []
    if inside > 1:
        phases += 2 * [ring([node], 1.0, 1) for node in members]
    if len(members) > 1:
        rails = [ring([[node[place]] for node in members], 2.0, 1) for place in range(inside)]
        phases += [replace(rail, share=rail.share / inside) for rail in rails]
    return together(phases)


def all_to_all(members: Members) -> Transfers:
    """Every member sends every other its part; what it keeps moves nowhere."""
    ranks = [gpu for node in members for gpu in node]
    pairs = [(one, other) for one in ranks for other in ranks if one != other]
    return transfers(pairs, 1 / len(ranks))


def exchange(ranks: Sequence[int], matrix: Floats) -> Transfers:
    """An uneven all-to-all: ``matrix[i, j]`` bytes from ``ranks[i]`` to ``ranks[j]``, in full.

    Raises:
        InputError: for a matrix of another shape.
    """
    count = len(ranks)
    if matrix.shape != (count, count):
        raise InputError("matrix", matrix.shape, "has another shape", f"({count}, {count})")
    sends = np.argwhere((matrix > 0) & ~np.eye(count, dtype=np.bool_))
    pairs = [(ranks[one], ranks[other]) for one, other in sends.tolist()]
    return transfers(pairs, matrix[sends[:, 0], sends[:, 1]])


def send(source: int, destination: int) -> Transfers:
    """One GPU to another."""
    return transfers([(source, destination)], 1.0)


def _rotated(node: Sequence[int], channel: int) -> list[int]:
    """A channel's way through a node: channels enter and leave at different GPUs."""
    first = channel % len(node)
    return [*node[first:], *node[:first]]


def _tree_edges(lines: list[list[int]], *, mirrored: bool) -> list[tuple[int, int]]:
    """(child, parent) edges, leaves first: a binary tree over the first GPUs of the nodes' lines,
    or its mirror image, and a chain down each line."""
    count = len(lines)
    edges = []
    for line in lines:
        edges += [(line[place], line[place - 1]) for place in range(len(line) - 1, 0, -1)]
    heads = [line[0] for line in (lines[::-1] if mirrored else lines)]
    # A node's parent is its number without the lowest bit, one step of that size on or back.
    across = []
    for node in range(1, count):
        low = node & -node
        parent = (node ^ low) | (low << 1)
        if parent >= count:
            parent = node ^ low
        across.append((low, heads[node], heads[parent]))
    across.sort(key=lambda edge: edge[0])
    return edges + [(child, parent) for _, child, parent in across]
