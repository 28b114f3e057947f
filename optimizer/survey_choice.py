"""Which survey a search needs: of every point of its space, or of what bounds leave open."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np

from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.enumeration import Block, blocks, some_blocks
from trainscout.optimizer.legs import proves_first
from trainscout.optimizer.sifted import sifted_survey
from trainscout.optimizer.sifting_progress import UnprovedError
from trainscout.optimizer.space import Space
from trainscout.optimizer.survey import INTERRUPTED, Survey, listed_survey, survey
from trainscout.optimizer.trial import OnProgress, Progress
from trainscout.optimizer.union import compile_space
from trainscout.pruning.launchable import Rejected
from trainscout.pruning.recipe_table import joined

# Up to so many points are all listed.
LISTED_POINTS = 500_000
# So many of a space of which nothing can be proved.
SOME_POINTS = 100_000
# Listing that is over by then goes unremarked.
_AT_A_GLANCE_S = 1.0
_MOST_KEPT = 16

_surveyed: list[tuple[object, Survey, float]] = []


def survey_once(asked: AskedSearch, on_progress: OnProgress | None) -> tuple[Survey, float]:
    """The survey of a space, and the seconds it took before this call: a search that was checked
    just before reuses it.

    What proves its answer need not list all of a large space.
    """
    question, options, spec = asked.question, asked.options, asked.spec
    proving = proves_first(options, spec)
    key = (
        json.dumps(asked.space),
        question,
        (asked.objective, options, spec) if proving else None,
    )
    at = next((at for at, (known, _, _) in enumerate(_surveyed) if known == key), None)
    if at is not None:
        _, made, spent_s = _surveyed[at]
        # Once: the next search of this question spends none of it.
        _surveyed[at] = key, made, 0.0
        return made, spent_s
    started_s = time.monotonic()
    compiled = compile_space(json.loads(key[0]), question)
    made = _survey_to_prove(compiled, asked, on_progress) if proving else survey(compiled)
    # Sifting takes long, and a multirun checks all its searches before the first.
    dear = [each for each in _surveyed if each[1].left_out or each[1].why_sampled]
    kept = dear[-_MOST_KEPT:]
    _surveyed[:] = [*kept, (key, made, time.monotonic() - started_s)]
    return made, 0.0


def forget_interrupted() -> None:
    """Have what was interrupted surveyed anew when it is asked for again."""
    _surveyed[:] = [each for each in _surveyed if each[1].why_sampled != INTERRUPTED]


def _survey_to_prove(space: Space, asked: AskedSearch, on_progress: OnProgress | None) -> Survey:
    """The survey that a search by bounds needs: of all points, where they are few."""
    points: list[Block] = []
    count, started_s = 0, time.monotonic()
    for block in blocks(space):
        points.append(block)
        count += len(block.indices)
        listing_s = time.monotonic() - started_s
        if on_progress is not None and listing_s > _AT_A_GLANCE_S:
            on_progress(Progress(count, None, {}, None, listing_s, None, "points listed"))
        if count > LISTED_POINTS:
            points.clear()
            try:
                objective, options = asked.objective, asked.options
                return sifted_survey(space, objective, asked.spec, options, on_progress)
            except UnprovedError as unproved:
                return _some(space, unproved)
    return survey(space, points)


def _some(space: Space, unproved: UnprovedError) -> Survey:
    """Some points of ``space`` at random, and first of all the best of those simulated."""
    known, why = unproved.known, unproved.why
    points, recipes = known.found()
    best = recipes.take(slice(0, len(recipes) if why == INTERRUPTED else known.top_k))
    rejected: dict[str, Rejected] = {}
    if why != INTERRUPTED:
        listed = survey(space, some_blocks(space, SOME_POINTS))
        if not len(points):
            return replace(listed, why_sampled=why)
        points, rejected = np.concatenate([points, listed.points.indices]), listed.rejected
        recipes = joined([recipes, listed.recipes])
    found = listed_survey(space, points, recipes)
    first = tuple(found.row_of[found.point_of(recipe)] for recipe in best)
    return replace(found, rejected=rejected, first=first, why_sampled=why)
