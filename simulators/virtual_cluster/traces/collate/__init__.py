"""From traces of single ranks to a job: who meets whom, who does the same, who is like whom."""

from trainscout.simulators.virtual_cluster.traces.collate.collated import Collated, collate
from trainscout.simulators.virtual_cluster.traces.collate.communication import communication
from trainscout.simulators.virtual_cluster.traces.collate.matching import check_order, match
from trainscout.simulators.virtual_cluster.traces.collate.placement import Family
from trainscout.simulators.virtual_cluster.traces.collate.probe import choose_ranks, parse_ranks

__all__ = [
    "Collated", "Family", "check_order", "choose_ranks", "collate", "communication", "match",
    "parse_ranks",
]  # fmt: skip
