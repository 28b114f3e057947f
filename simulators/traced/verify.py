"""Re-checks recipes: Megatron-Core runs ranks of every stage, and the traces are replayed."""

from __future__ import annotations

# Adam's state comes into being in the first step; the second is like all that follow.
STEPS = 2
# Rounds of the pipeline that are traced: one to fill it, one to show its period.
ROUNDS = 2
