"""Why nothing fits in a cell: the closest miss, the rules, and how completely that is known."""

from __future__ import annotations

from trainscout.optimizer.trial import SearchResult
from trainscout.reports.explain import JobOf
from trainscout.reports.nothing_found import why_nothing_fits
from trainscout.reports.proof import format_proof


def why_no_recipe(result: SearchResult, job_of: JobOf) -> str:
    """Lines for a search without a recipe that fits; an exact search's end with its proof."""
    words = why_nothing_fits(result, job_of)
    if result.certificate is not None:
        words += "\n" + format_proof(result.certificate)
    return words
