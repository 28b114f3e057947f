"""Routing of tokens to experts: who gets how many, and what the exchange costs on a full mesh.

``trainscout moe --help`` is the command; ``rank_imbalance`` says what a routing means
for a training recipe.
"""

from trainscout.simulators.predictor.moe.communication import (
    Communication,
    communicate,
    even_load_time_ms,
)
from trainscout.simulators.predictor.moe.dispatch import (
    copies_between,
    copies_by_expert,
    cut_to_capacity,
)
from trainscout.simulators.predictor.moe.imbalance import dropped_share, rank_imbalance, rank_loads
from trainscout.simulators.predictor.moe.mesh import Mesh
from trainscout.simulators.predictor.moe.message import Message
from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.moe.router import Router, expert_loads, route

__all__ = [
    "Communication",
    "Mesh",
    "Message",
    "Router",
    "communicate",
    "copies_between",
    "copies_by_expert",
    "cut_to_capacity",
    "dropped_share",
    "even_load_time_ms",
    "expert_loads",
    "rank_imbalance",
    "rank_loads",
    "read_histograms",
    "route",
]
