"""Rank by rank: traces of a job played with the same prices and engine as built-in workloads."""

from trainscout.simulators.virtual_cluster.execution.answer import RankStep, TracedStep
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks

__all__ = ["RankStep", "TracedStep", "replay_ranks"]
