"""From traces of single ranks to a job: who meets whom, who does the same, who is like whom."""

from trainscout.simulators.virtual_cluster.traces.collate.classes import (
    Classes,
    Difference,
    classes,
)
from trainscout.simulators.virtual_cluster.traces.collate.collated import Collated, collate
from trainscout.simulators.virtual_cluster.traces.collate.communication import (
    Communication,
    Communicator,
    communication,
)
from trainscout.simulators.virtual_cluster.traces.collate.content import (
    Content,
    PhaseContent,
    content,
)
from trainscout.simulators.virtual_cluster.traces.collate.matching import (
    Matching,
    Mismatch,
    Rendezvous,
    match,
)
from trainscout.simulators.virtual_cluster.traces.collate.order import OrderProblem, check_order
from trainscout.simulators.virtual_cluster.traces.collate.placement import Family
from trainscout.simulators.virtual_cluster.traces.collate.probe import (
    ChosenRanks,
    choose_ranks,
    parse_ranks,
)

__all__ = [
    "ChosenRanks",
    "Classes",
    "Collated",
    "Communication",
    "Communicator",
    "Content",
    "Difference",
    "Family",
    "Matching",
    "Mismatch",
    "OrderProblem",
    "PhaseContent",
    "Rendezvous",
    "check_order",
    "choose_ranks",
    "classes",
    "collate",
    "communication",
    "content",
    "match",
    "parse_ranks",
]
