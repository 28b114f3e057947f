"""Rank by rank: traces of a job played with the same prices and engine as built-in workloads."""
