"""Out of memory with recomputation implies out of memory with less of it (MAYA, Table 5)."""

from __future__ import annotations

from dataclasses import replace

from trainscout.pruning.history import History
from trainscout.pruning.tactic import Verdict
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe


class RecomputeOutOfMemory:
    """Skip a recipe whose twin with *more* activation recomputation already did not fit.

    Keeping more activations needs more memory, whatever else happens. Two care points keep
    the order true of real footprints. Full recomputation holds every layer's input *and* one
    layer's whole working set, so it saves memory only where a stage has two layers or more.
    And that working set includes unfused attention scores, which ``selective`` never holds for
    long, so ``full`` bounds ``selective`` only under flash attention.
    """

    name = "recompute_oom"
    premise = "less recomputation never needs less memory"

    def check(self, job: Job, history: History) -> Verdict | None:
        for twin in _more_recomputation(job):
            known = history.find(twin)
            if known is not None and not known.fits:
                reason = (
                    f"out of memory even with recompute={twin.recompute}"
                    f"{_layers(twin)}, which needs no more memory"
                )
                return Verdict(self.name, False, reason, known)
        return None


def _more_recomputation(job: Job) -> list[Recipe]:
    """The job's twins that keep no more activations, in order of likely use."""
    recipe = job.recipe
    twins = []
    if recipe.recompute == "none":
        twins.append(replace(recipe, recompute="selective"))
    if min(job.layers_per_stage) < 2:
        return twins
    everything = replace(
        recipe,
        recompute="full",
        recompute_layers=None,
        recompute_taper=0,
        recompute_modules=None,
    )
    if recipe.recompute == "full":
        if recipe.recompute_layers is not None:
            chunk = job.largest_chunk
            more = range(recipe.recompute_layers + 1, chunk)
            twins += [replace(recipe, recompute_layers=layers) for layers in more]
        if recipe.recompute_layers is not None or recipe.recompute_taper:
            twins.append(everything)
    elif recipe.recompute == "none" or job.attention != "unfused":
        twins.append(everything)
    return twins


def _layers(recipe: Recipe) -> str:
    layers = recipe.recompute_layers
    return "" if layers is None else f" of {layers} layers per chunk"
