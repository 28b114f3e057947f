"""The legs of a search: which samplers propose its recipes, one after the other.

Most searches have one. ``search=auto`` proves its answer by bounds where there are some, and hands
over to a sampler when that takes too long; ``search.prove`` closes the gap of any sampler by
bounds. Each leg starts from what those before it found.
"""

from __future__ import annotations

from dataclasses import replace

from trainscout.optimizer.bounding import BOUNDED_SIMULATOR
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.samplers.base import SearchSpec
from trainscout.optimizer.survey import INTERRUPTED
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.registry import SimulatorSpec

AUTO, PROVING, SAMPLING = "auto", "exact", "tpe"


def legs_of(search: SearchSpec) -> tuple[SearchSpec, ...]:
    """The search as its samplers see it, in order.

    Raises:
        InputError: for ``search.prove`` with a simulator that has no bounds.
    """
    options, bounded = search.options, search.simulator.name == BOUNDED_SIMULATOR
    if options.prove and not bounded:
        name, allowed = search.simulator.name, "false, or simulator=replay"
        raise InputError("search.prove", True, f"needs bounds, which {name} has not", allowed)
    if search.survey.why_sampled == INTERRUPTED:
        # To be ranked and shown, and no more.
        known = replace(_sampling(options), n_trials=len(search.survey.first), patience=None)
        return (replace(search, options=known),)
    if options.sampler == AUTO:
        legs = [_sampling(options)]
        if bounded and search.survey.why_sampled is None:
            legs.insert(0, replace(_proving(options), n_trials=options.n_trials))
        if search.survey.left_out is not None:
            # What bounds rule out is not even listed: there is nothing else to sample.
            legs = [replace(legs[0], proof_timeout_s=None)]
    else:
        legs = [options]
    # Of some points nothing is proved.
    if options.prove and search.survey.why_sampled is None:
        legs.append(replace(_proving(options), options={}))
    return tuple(replace(search, options=each) for each in legs)


def proves_first(options: SearchOptions, simulator: SimulatorSpec) -> bool:
    """Whether a search begins with bounds, which then may decide what of the space is listed."""
    sampler = PROVING if options.sampler == AUTO else options.sampler
    return sampler == PROVING and simulator.name == BOUNDED_SIMULATOR


def _proving(options: SearchOptions) -> SearchOptions:
    """By bounds alone: tactics discard by experience."""
    return replace(options, sampler=PROVING, n_trials=None, patience=None, pruning=())


def _sampling(options: SearchOptions) -> SearchOptions:
    n_trials = options.n_trials or SearchOptions.n_trials
    return replace(options, sampler=SAMPLING, n_trials=n_trials, options={})
