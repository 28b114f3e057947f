"""What to try next: one narrow ask/tell interface, one file per family of samplers."""

from __future__ import annotations

from trainscout.optimizer.registry import SAMPLERS, imported, require_package
from trainscout.optimizer.samplers.base import SearchSpec
from trainscout.optimizer.samplers.sampler import Sampler
from trainscout.simulators.predictor.question.errors import InputError


def make_sampler(search: SearchSpec) -> Sampler:
    """The sampler that the search's options name.

    Raises:
        InputError: for unknown sampler options, a missing package, several objectives with a
            sampler that takes one, or a simulator without the bounds that the sampler needs.
    """
    name = search.options.sampler
    entry = SAMPLERS[name]
    require_package("search.sampler", name, SAMPLERS)
    if entry.one_objective and len(search.objective.names) > 1:
        others = [each for each, other in SAMPLERS.items() if not other.one_objective]
        raise InputError("search.sampler", name, "takes one objective", ", ".join(others))
    assert entry.path is not None
    sampler: Sampler = imported("samplers", entry.path)(search)
    return sampler
