"""Rank by rank: traces of a job played with the same prices and engine as built-in workloads."""

from .answer import RankStep, TracedStep
from .step import replay_ranks

__all__ = ["RankStep", "TracedStep", "replay_ranks"]
