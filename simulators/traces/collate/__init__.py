"""From traces of single ranks to a job: who meets whom, who does the same, who is like whom."""

from simulators.traces.collate.classes import Classes, Difference, classes
from simulators.traces.collate.collated import Collated, collate
from simulators.traces.collate.communication import Communication, Communicator, communication
from simulators.traces.collate.content import Content, PhaseContent, content
from simulators.traces.collate.families import Family
from simulators.traces.collate.matching import Matching, Meeting, Mismatch, match
from simulators.traces.collate.order import OrderProblem, check_order
from simulators.traces.collate.probe import ChosenRanks, choose_ranks, told_ranks

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
    "Meeting",
    "Mismatch",
    "OrderProblem",
    "PhaseContent",
    "check_order",
    "choose_ranks",
    "classes",
    "collate",
    "communication",
    "content",
    "match",
    "told_ranks",
]
