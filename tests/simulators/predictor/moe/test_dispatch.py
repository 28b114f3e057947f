"""Copies of tokens on their way: none appears, none is lost unless it is dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.moe.loads import (
    copies_between,
    copies_by_expert,
    cut_to_capacity,
)
from trainscout.simulators.predictor.moe.router import Router, route
from trainscout.simulators.predictor.question.errors import InputError


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 200), st.integers(0, 5), st.data())
def test_tokens_and_copies_are_conserved(
    nodes: int, per_node: int, more: int, seed: int, data: st.DataObject
) -> None:
    experts, tokens = nodes * per_node, nodes + more
    top_k = data.draw(st.integers(1, experts))
    chosen = route(Router(experts, tokens, top_k, seed=seed))
    copies = copies_by_expert(chosen, experts, nodes)
    between = copies_between(copies)
    # Every node sends top_k copies of each of its tokens; it holds its even share of them.
    assert copies.sum() == between.sum() == tokens * top_k
    assert (between.sum(axis=1) == copies.sum(axis=1)).all()
    held = copies.sum(axis=1) / top_k
    assert held.max() - held.min() <= 1
    assert (copies.sum(axis=0) == np.bincount(chosen.ravel(), minlength=experts)).all()
    # What arrives at a node is what its experts receive.
    by_node = copies.sum(axis=0).reshape(nodes, per_node).sum(axis=1)
    assert (between.sum(axis=0) == by_node).all()


def test_neighbours_share_a_node_and_experts_lie_in_order() -> None:
    chosen = np.array([[0, 3], [0, 1], [2, 3], [2, 0]], np.int32)
    assert copies_by_expert(chosen, 4, 2).tolist() == [[2, 1, 0, 1], [1, 0, 2, 1]]
    assert copies_between(copies_by_expert(chosen, 4, 2)).tolist() == [[3, 1], [1, 3]]


def test_an_expert_takes_its_capacity_from_each_node() -> None:
    copies = np.array([[6, 1, 1, 0], [2, 2, 2, 2]])
    # Two experts for each of four tokens a node: an even share of two.
    assert cut_to_capacity(copies, 8, 2, 1.0).tolist() == [[2, 1, 1, 0], [2, 2, 2, 2]]
    assert cut_to_capacity(copies, 8, 2, 1.25).tolist() == [[3, 1, 1, 0], [2, 2, 2, 2]]
    assert (cut_to_capacity(copies, 8, 2, 4.0) == copies).all()
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="capacity_factor"):
            cut_to_capacity(copies, 8, 2, factor)
