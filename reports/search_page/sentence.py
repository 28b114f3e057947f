"""A recipe spelled out, for readers who do not read ``tp4 pp12`` at sight."""

from __future__ import annotations

from trainscout.simulators.predictor.question.job import Job

_RECOMPUTE = {"selective": "recomputes selected modules", "full": "recomputes whole layers"}


def recipe_sentence(job: Job) -> str:
    """One sentence on how a valid job is laid out and run."""
    recipe = job.recipe
    pipeline = f"{recipe.pp} pipeline stages" if recipe.pp > 1 else "no pipeline"
    if recipe.vpp > 1:
        pipeline += f" of {recipe.vpp} chunks each"
    parts = [
        f"Tensor parallelism over {recipe.tp} GPUs" if recipe.tp > 1 else "No tensor parallelism",
        pipeline,
        f"{job.dp} data-parallel replicas" if job.dp > 1 else "one replica",
    ]
    if recipe.cp > 1:
        parts.append(f"sequences split over {recipe.cp} GPUs")
    if job.model.moe is not None:
        parts.append(f"experts spread over {recipe.ep} GPUs")
    parts.append(
        f"micro-batches of {recipe.micro_batch} ({job.num_micro_batches} a step for each replica)"
    )
    return f"{', '.join(parts)}; {'; '.join(_switches(job))}."


def _switches(job: Job) -> list[str]:
    recipe = job.recipe
    said = [_RECOMPUTE.get(recipe.recompute, "recomputes nothing")]
    sharded = {0: "replicates", 1: "shards", 2: "shards gradients and", 3: "shards parameters and"}
    said.append(f"{sharded[recipe.zero_stage]} optimizer state (ZeRO {recipe.zero_stage})")
    if recipe.sp:
        said.append("sequence parallel")
    overlaps = [
        words
        for words, on in (
            ("gradient reduction", recipe.overlap_grad_reduce),
            ("parameter gathers", recipe.overlap_param_gather),
            ("tensor-parallel communication", recipe.tp_comm_overlap),
            ("expert exchange", recipe.overlap_moe_expert_parallel_comm),
        )
        if on
    ]
    said.append(f"overlaps {' and '.join(overlaps)}" if overlaps else "overlaps no communication")
    return said
