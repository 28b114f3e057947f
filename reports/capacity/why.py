"""Why nothing fits in a cell: the closest miss, the rules, and how completely that is known."""

from __future__ import annotations

from optimizer.trial import SearchResult
from reports.explain import JobOf
from reports.nothing_found import why_nothing_fits
from reports.proof import proof_words


def why_no_recipe(result: SearchResult, job_of: JobOf) -> str:
    """Lines for a search without a recipe that fits; an exact search's end with its proof."""
    words = why_nothing_fits(result, job_of)
    if result.certificate is not None:
        words += "\n" + proof_words(result.certificate)
    return words
