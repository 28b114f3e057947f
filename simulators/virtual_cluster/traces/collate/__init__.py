"""From traces of single ranks to a job: who meets whom, who does the same, who is like whom."""

from .collated import Collated, collate
from .communication import communication
from .matching import check_order, match
from .placement import Family
from .probe import choose_ranks, parse_ranks

__all__ = [
    "Collated", "Family", "check_order", "choose_ranks", "collate", "communication", "match",
    "parse_ranks",
]  # fmt: skip
