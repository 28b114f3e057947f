"""The order in which an exhaustive search profits most from the tactics."""

from __future__ import annotations

from trainscout.simulators.predictor.question.recipe import Recipe

_MOST_RECOMPUTATION_FIRST = {"full": 0, "selective": 1, "none": 2}


def resolves_others_rank(recipe: Recipe) -> tuple[int, ...]:
    """Sort key: recipes whose outcome resolves others come before those others.

    More recomputation before less, with sequence parallelism before without, without the
    distributed optimizer before with, fewer virtual stages before more, larger micro-batches
    before smaller without a pipeline and after them with one.
    """
    return (
        _MOST_RECOMPUTATION_FIRST[recipe.recompute],
        -(recipe.recompute_layers or 1 << 30),
        not recipe.sp,
        recipe.zero_stage,
        recipe.vpp,
        # Without pipelining larger ones resolve smaller ones' time, with it smaller their memory.
        -recipe.micro_batch if recipe.pp == 1 else recipe.micro_batch,
    )
