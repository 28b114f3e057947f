"""What each pattern moves, counted; and that nobody sends what it does not have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.laboratory.collectives.measurements import (
    ALGORITHMS as NCCL_ALGORITHMS,
)
from trainscout.simulators.predictor.network.collectives.patterns import (
    OF_NCCL,
    by_node,
    exchange,
    pattern,
)
from trainscout.simulators.predictor.question.errors import InputError

members = (
    st.tuples(st.integers(1, 5), st.integers(1, 4))
    .filter(lambda n: n[0] * n[1] > 1)
    .map(lambda n: [[8 * node + place for place in range(n[1])] for node in range(n[0])])
)


def sent(what, ranks):
    return np.array([what.share[what.source == rank].sum() for rank in ranks])


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)]
)
@given(members, st.integers(1, 3))
def test_a_ring_sends_what_its_algorithm_does(kind, factor, nodes, channels):
    ranks = [gpu for node in nodes for gpu in node]
    what = pattern(kind, nodes, channels=channels)
    np.testing.assert_allclose(sent(what, ranks), factor * (len(ranks) - 1) / len(ranks))


@given(members, st.integers(1, 2))
def test_a_tree_takes_all_data_to_one_rank_and_back_to_every_other(nodes, channels):
    what = pattern("all_reduce", nodes, algorithm="tree", channels=channels)
    ranks = [gpu for node in nodes for gpu in node]
    # Every rank but the root of a tree sends all of the tree's data up and receives it back.
    assert what.share.sum() == pytest.approx(2 * (len(ranks) - 1))
    for label in np.unique(what.label):
        mine = what.label == label
        ups = set(zip(what.source[mine].tolist(), what.destination[mine].tolist(), strict=True))
        assert {(b, a) for a, b in ups} == ups
        assert len(ups) == 2 * (len(ranks) - 1)


def test_every_algorithm_of_nccl_is_a_pattern():
    assert set(NCCL_ALGORITHMS) < set(OF_NCCL)


@given(st.integers(2, 40))
def test_aggregated_trees_send_what_a_ring_does_half_of_it_to_the_next(count):
    what = pattern("all_gather", [[rank] for rank in range(count)], algorithm="pat")
    np.testing.assert_allclose(sent(what, range(count)), (count - 1) / count)
    far = (what.destination - what.source) % count
    assert what.share[far == 1].sum() == pytest.approx(count // 2)
    # All that one has reaches each by the bits of how far it is, the farthest step first.
    assert set(far.tolist()) == {1 << bit for bit in range((count - 1).bit_length())}


@given(members)
def test_two_levels_cross_nodes_with_a_share_of_the_data_each(nodes):
    what = pattern("all_reduce", nodes, algorithm="hierarchical")
    inside = len(nodes[0])
    across = what.source // 8 != what.destination // 8
    for rank in (gpu for node in nodes for gpu in node):
        crossing = what.share[across & (what.source == rank)].sum()
        assert crossing == pytest.approx(2 * (len(nodes) - 1) / len(nodes) / inside)


@given(members)
def test_all_to_all_sends_each_pair_its_part(nodes):
    ranks = [gpu for node in nodes for gpu in node]
    what = pattern("all_to_all", nodes)
    assert len(what) == len(ranks) * (len(ranks) - 1)
    np.testing.assert_allclose(what.share, 1 / len(ranks))


def test_an_uneven_exchange_moves_its_matrix():
    matrix = np.array([[5.0, 0.0, 3.0], [2.0, 9.0, 0.0], [0.0, 4.0, 0.0]])
    what = exchange([0, 8, 9], matrix)
    moved = dict(
        zip(
            zip(what.source.tolist(), what.destination.tolist(), strict=True),
            what.share.tolist(),
            strict=True,
        )
    )
    assert moved == {(0, 9): 3.0, (8, 0): 2.0, (9, 8): 4.0}
    with pytest.raises(InputError, match="another shape"):
        exchange([0, 1], matrix)


def test_channels_leave_nodes_at_different_gpus():
    nodes = [[0, 1, 2, 3], [8, 9, 10, 11]]
    what = pattern("all_reduce", nodes, channels=4)
    leaving = what.source[what.source // 8 != what.destination // 8]
    assert sorted(leaving.tolist()) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_ranks_by_node():
    assert by_node([0, 1, 8, 17, 16], 8) == [[0, 1], [8], [17, 16]]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "gossip"}, "collective.kind"),
        ({"algorithm": "star"}, "algorithm"),
        ({"members": [[0]]}, "members"),
        ({"channels": 0}, "channels"),
        ({"algorithm": "hierarchical", "members": [[0, 1], [8]]}, "members"),
    ],
)
def test_what_makes_no_pattern_is_refused(changes, field):
    arguments = {"kind": "all_reduce", "members": [[0, 1], [8, 9]], **changes}
    with pytest.raises(InputError) as refused:
        pattern(arguments.pop("kind"), arguments.pop("members"), **arguments)
    assert refused.value.field == field
