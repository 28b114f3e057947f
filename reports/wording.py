"""Quantities and recipes in the words people read; every number carries its unit."""

from __future__ import annotations

from collections.abc import Sequence

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe

_GIB = 2**30

STOP_WORDS = {
    "n_trials": "every trial asked for was spent",
    "converged": "the top recipes stopped changing",
    "space_exhausted": "the whole space was looked at",
    "proved": "nothing left can be among the best",
    "interrupted": "it was interrupted",
    "timeout": "its time was up",
}
"""Why a search ended, after "ended because"."""


def format_recipe(recipe: Recipe, dp: int | None) -> str:
    """One line for a recipe: degrees first, then only the knobs that are on. A recipe whose
    degrees do not divide the cluster has no ``dp``."""
    degrees = [("tp", recipe.tp), ("pp", recipe.pp)]
    degrees += [("cp", recipe.cp)] if dp is None else [("dp", dp), ("cp", recipe.cp)]
    if recipe.ep > 1 or recipe.etp not in (None, recipe.tp):
        degrees += [("ep", recipe.ep), ("etp", recipe.etp or recipe.tp)]
    words = [
        f"{name}{value}" for name, value in degrees if value > 1 or name in ("tp", "pp", "dp")
    ]
    if recipe.vpp > 1:
        words.append(f"vpp{recipe.vpp}")
    words.append(f"mb{recipe.micro_batch}")
    if recipe.recompute != "none":
        detail = recipe.recompute_layers or recipe.recompute_modules
        words.append(f"recompute={recipe.recompute}" + (f"({detail})" if detail else ""))
        if recipe.recompute_taper:
            words.append(f"taper{recipe.recompute_taper}")
    if recipe.sp:
        words.append("sp")
    words.append(f"zero{recipe.zero_stage}")
    overlaps = [
        name
        for name, on in (
            ("grad", recipe.overlap_grad_reduce),
            ("param", recipe.overlap_param_gather),
            ("tp", recipe.tp_comm_overlap),
        )
        if on
    ]
    if overlaps:
        words.append("overlap=" + "+".join(overlaps))
    if recipe.schedule != "1f1b":
        words.append(recipe.schedule)
    if recipe.precision:
        words.append(recipe.precision)
    if recipe.use_tp_pp_dp_mapping:
        words.append("tp-pp-dp")
    if recipe.nccl_algo:
        words.append(f"nccl={recipe.nccl_algo}")
    if recipe.nccl_max_channels:
        words.append(f"channels<={recipe.nccl_max_channels}")
    for name in ("first_stage_layers", "last_stage_layers"):
        if getattr(recipe, name) is not None:
            words.append(f"{name}={getattr(recipe, name)}")
    words += [name for name in ("embedding_as_layer", "loss_as_layer") if getattr(recipe, name)]
    return " ".join(words)


def format_question(job: Job) -> str:
    """What was asked, without the recipe."""
    cluster, training = job.cluster, job.training
    return (
        f"{job.model.name} on {cluster.name} ({job.world_size} x {job.gpu.name}), "
        f"batch {training.global_batch_size} x {job.sequence_length} tokens, {job.precision}"
    )


def format_seconds(seconds: float) -> str:
    """Seconds to four significant digits; milliseconds below one second."""
    if seconds < 1:
        return f"{seconds * 1e3:.4g} ms"
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds:.3f} s"


def format_long_time(seconds: float) -> str:
    """Hours below three days, then days."""
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"


def format_gib(count_bytes: float) -> str:
    return f"{count_bytes / _GIB:.1f} GiB"


def format_percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


def format_usd(usd: float) -> str:
    """US dollars to three significant digits, with k and M above a thousand."""
    for scale, suffix in ((1e6, " M"), (1e3, " k")):
        if abs(usd) >= scale:
            return f"${usd / scale:.3g}{suffix}"
    return f"${usd:.3g}"


def format_tokens(tokens: float) -> str:
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= scale:
            return f"{tokens / scale:.4g} {suffix} tokens"
    return f"{tokens:.4g} tokens"


def format_part(name: str) -> str:
    """A breakdown part as words: ``exposed_tp_communication`` -> exposed TP communication."""
    acronyms = {"tp", "pp", "dp", "cp", "ep", "etp"}
    return " ".join(
        word.upper() if word in acronyms else word for word in name.removesuffix("_s").split("_")
    )


def format_ranks(ranks: Sequence[int]) -> str:
    """Ascending ranks as people write them: #2 to #4, #7."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"#{run[0]}" if len(run) == 1 else f"#{run[0]} to #{run[-1]}" for run in runs)
