"""Out of memory with less means out of memory with more: activations, micro-batches, stages,
replicas (the first two are MAYA's, Table 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainscout.pruning.tactic import History, Verdict
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.schedules import schedule_kind


@dataclass(frozen=True)
class SmallerTwinOutOfMemory:
    """Skip a recipe when a twin that needs no more memory already did not fit.

    ``leaner`` lists a job's twins that need no more, in most software.
    """

    name: str
    leaner: Callable[[Job], Iterator[Recipe]]

    def twins(self, job: Job) -> Iterator[Recipe]:
        """A job's twins that need no more."""
        # What nanotron copies as a step ends finds places where larger activations were.
        return iter(()) if job.framework.copies_shards else self.leaner(job)

    def check(self, job: Job, history: History) -> Verdict | None:
        for twin in self.twins(job):
            known = history.find(twin)
            if known is not None and not known.fits:
                own = vars(job.recipe)
                moved = {name: value for name, value in vars(twin).items() if value != own[name]}
                words = ", ".join(
                    f"{name}={'null' if v is None else v}" for name, v in moved.items()
                )
                reason = f"out of memory even with {words}, which needs no more memory"
                return Verdict(self.name, False, reason, known)
        return None


def _more_recomputation(job: Job) -> Iterator[Recipe]:
    """Keeping more activations needs more memory, whatever else happens.

    Two care points keep the order true of real footprints. Full recomputation holds every
    layer's input *and* one layer's whole working set, so it saves memory only where a stage has
    two layers or more. And that working set includes unfused attention scores, which
    ``selective`` never holds for long, so ``full`` bounds ``selective`` only under flash
    attention.
    """
    recipe = job.recipe
    if recipe.recompute == "none":
        yield replace(recipe, recompute="selective")
    if min(job.layers_per_stage) < 2:
        return
    if recipe.recompute_layers is not None and recipe.recompute == "full":
        for layers in range(recipe.recompute_layers + 1, job.largest_chunk):
            yield replace(recipe, recompute_layers=layers)
    everything = replace(
        recipe, recompute="full", recompute_layers=None, recompute_taper=0, recompute_modules=None
    )
    if everything != recipe and (recipe.recompute != "selective" or job.attention != "unfused"):
        yield everything


def _sequence_parallel(job: Job) -> Iterator[Recipe]:
    """Sequence parallelism only shards activations that the twin replicates over the
    tensor-parallel group; parameters and optimizer state are the same. The gathered buffer it
    needs for a GEMM is a tensor that the twin keeps in full anyway."""
    if not job.recipe.sp and job.recipe.tp > 1:
        yield replace(job.recipe, sp=True)


def _smaller_micro_batches(job: Job) -> Iterator[Recipe]:
    """A micro-batch of k times the size keeps k times the activations, and as many of them in
    flight: never less than k times as many smaller ones. Where all of a step are in flight in a
    pipeline both keep as much, and a new gradient of weights, as large whatever the size, meets
    more of what smaller ones keep; one that is alone in its step may meet no gradients, which
    later ones do (``memory.static``)."""
    recipe, framework = job.recipe, job.framework
    comes = framework.torch_wrappers or framework.flattens_gradients
    all_in_flight = job.num_micro_batches <= recipe.pp or job.schedule == "gpipe"
    if all_in_flight and (recipe.pp > 1 or comes):
        return
    for smaller in range(1, recipe.micro_batch // 2 + 1):
        if recipe.micro_batch % smaller == 0:
            yield replace(recipe, micro_batch=smaller)


def _fewer_virtual_stages(job: Job) -> Iterator[Recipe]:
    """Interleaving keeps more in flight than the plain pipeline does: on stage ``s`` at least
    ``2 (pp - s - 1) + (vpp - 1) pp + 1`` chunks of a ``vpp``-th instead of ``pp - s`` whole ones
    (Narayanan et al. 2021, section 2.2).

    Only where both give every stage the same layers, and recompute as many of them. Among
    interleaved pipelines more virtual stages may need less.
    """
    recipe = job.recipe
    tapers = recipe.recompute_layers is not None or recipe.recompute_taper
    if recipe.vpp == 1 or tapers or schedule_kind(job.schedule).splits_backward:
        return
    if len(job.model.layer_kinds) > 1:
        return
    plain = replace(recipe, vpp=1)
    try:
        alike = replace(job, recipe=plain).layers_per_stage == job.layers_per_stage
    except InputError:
        return
    if alike:
        yield plain


def _more_sharding(job: Job) -> Iterator[Recipe]:
    """ZeRO 1 shards the optimizer state that plain data parallelism repeats, ZeRO 2 the gradients
    besides (Rajbhandari et al. 2020, section 5). ZeRO 3 gathers what it uses, and is left out, and
    so is software where ZeRO 2 adds up whole gradients in fp32, gathers on a stream of its own, or
    more sharding comes with buckets and flat copies."""
    recipe, framework = job.recipe, job.framework
    apart = framework.torch_wrappers and framework.copies_gathered
    whole = framework.sums_whole_grads and framework.reduce_grads_fp32
    if whole or framework.flattens_gradients:
        return
    for stage in range(recipe.zero_stage + 1, 3):
        if stage == 1 or (recipe.pp == 1 and not apart):
            yield replace(recipe, zero_stage=stage)


MEMORY_ORDER = (
    SmallerTwinOutOfMemory("recompute_oom", _more_recomputation),
    SmallerTwinOutOfMemory("sequence_parallel_oom", _sequence_parallel),
    SmallerTwinOutOfMemory("micro_batch_oom", _smaller_micro_batches),
    SmallerTwinOutOfMemory("virtual_stages_oom", _fewer_virtual_stages),
    SmallerTwinOutOfMemory("sharding_oom", _more_sharding),
)
