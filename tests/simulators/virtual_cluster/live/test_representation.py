"""Which rank stands for which, and where groups repeat."""

from __future__ import annotations

import pytest

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.live.representation import Representation

STAGES = Representation.by_neighbours(96, [0, 24, 48, 72])


def test_each_rank_is_stood_for_by_the_by_neighbours():
    assert STAGES.stand_in[0] == STAGES.stand_in[23] == 0
    assert STAGES.stand_in[24] == 24
    assert STAGES.stand_in[95] == 72
    assert Representation.by_neighbours(8, [0, 2, 3]).stand_in == (0, 0, 2, 3, 3, 3, 3, 3)
    assert Representation.by_neighbours(8, [1, 2, 3]).stand_in[0] == 1
    assert Representation.by_neighbours(4, [2]).stand_in == (2, 2, 2, 2)
    assert not Representation.by_neighbours(4, [2]).everybody
    assert Representation.by_neighbours(4, range(4)).everybody


def test_the_last_of_every_block_stand_for_it():
    who = Representation.by_neighbours(512, range(63, 512, 64))
    assert who.stand_in[0] == who.stand_in[63] == 63
    assert who.stand_in[448] == 511
    assert who.copies(tuple(range(56, 64))) == tuple(
        tuple(range(first, first + 8)) for first in range(0, 56, 8)
    )
    assert set(who.copies((63, 511))) == {(k, k + 448) for k in range(63)}


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1], [8]])
def test_impossible_ranks_are_refused(ranks):
    with pytest.raises(InputError, match="--ranks"):
        Representation.by_neighbours(8, ranks)


def test_members_are_those_that_are_simulated():
    assert STAGES.simulated_members((0, 8, 16)) == (0,)
    assert STAGES.simulated_members((0, 24, 48, 72)) == (0, 24, 48, 72)
    assert STAGES.simulated_members((7, 31)) == (0, 24)


def test_tensor_parallel_groups_repeat_on_the_other_nodes_of_a_stage():
    eight = tuple(range(8))
    assert STAGES.copies(eight) == (tuple(range(8, 16)), tuple(range(16, 24)))


def test_data_parallel_groups_repeat_for_every_place_in_the_node():
    assert STAGES.copies((0, 8, 16)) == tuple((k, k + 8, k + 16) for k in range(1, 8))


def test_transfers_between_stages_repeat_for_every_rank_of_the_stage():
    assert STAGES.copies((0, 24)) == tuple((k, k + 24) for k in range(1, 24))
    assert STAGES.copies((48, 24)) == tuple((48 + k, 24 + k) for k in range(1, 24))
