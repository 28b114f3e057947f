"""What is said of experts' popularity; nothing here needs torch."""

from __future__ import annotations

import pytest

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hot=1", "moe_imbalance.hot=1: is not a known name"),
        ("hot_ratio=0.1,hot_weight=0.5", "moe_imbalance.num_experts.*is missing"),
        ("num_experts=64,hot_ratio=0.1", "needs hot_weight"),
        ("num_experts=64,hot_ratio=0.1,hot_weight=x", "hot_weight=x: has the wrong type"),
        ("num_experts=64,hot_ratio=0.1,hot_weight=0.5,seed", "seed=: has the wrong type"),
        ("num_experts=64,num_experts=8", "given twice"),
        ("num_experts=64,hot_ratio=0.001,hot_weight=0.5", "hot_ratio"),
        ("histogram=x.csv,seed=1", "histogram says it all"),
        ("histogram=no_such_file.csv", "cannot be read"),
    ],
)
def test_a_wrong_imbalance_is_refused_at_once(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Imbalance.parse(text)
