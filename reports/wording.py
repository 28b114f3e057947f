"""Quantities and recipes in the words people read; every number carries its unit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainscout.simulators.predictor.answer.prediction import Memory, Prediction
from trainscout.simulators.predictor.memory.bands import TIGHT
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.uncertainty.interval import LEVEL

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
    """One line for a recipe, each knob as it is declared to be shown; what is off is left out. A
    recipe whose degrees do not divide the cluster has no ``dp``."""
    words: list[str] = []
    for name, knob in KNOBS.items():
        value = getattr(recipe, name)
        if knob.always or value != knob.default:
            _append_word(words, knob.label.format(value))
        if name == "pp" and dp is not None:
            words.append(f"dp{dp}")
    return " ".join(words)


def _append_word(words: list[str], word: str) -> None:
    """Details join the word before them, and so do further values of one key."""
    key, equals, value = word.partition("=")
    if word.startswith("("):
        words[-1] += word
    elif equals and words[-1].startswith(key + equals):
        words[-1] += f"+{value}"
    else:
        words.append(word)


def format_room(memory: Memory) -> str:
    """What the fullest GPU has free or lacks, and where that leaves it open, its chance."""
    amount = format_gib(abs(memory.headroom_bytes))
    room = f"{amount} free" if memory.headroom_bytes >= 0 else f"{amount} too much"
    if memory.host_bytes:
        capacity = format_gib(memory.host_capacity_bytes)
        room += f"; {memory.host_bytes / 2**30:.1f} of {capacity} of the host's"
    return f"{room}, {format_chance(memory)}" if memory.band == TIGHT else room


def format_chance(memory: Memory) -> str:
    """How likely the memory suffices, as predictions of it err."""
    return f"{memory.fit_probability:.0%} likely to fit"


def format_question(job: Job, assumed: Collection[str] = ()) -> str:
    """What was asked, without the recipe.

    Args:
        job: any of the question's.
        assumed: what nobody gave, fields of the training or ``model`` and ``cluster``: their
            defaults are marked.
    """
    cluster, training = job.cluster, job.training
    names = {field: field for field in ("model", "cluster")}
    names |= {"global_batch_size": "batch", "sequence_length": "length"}
    defaults = format_listing([words for field, words in names.items() if field in assumed])
    return (
        f"{job.model.name} on {cluster.name} ({job.world_size} x {job.gpu.name}), "
        f"batch {training.global_batch_size} {'pairs ' * (training.sequences_per_sample - 1)}"
        f"x {job.sequence_length} tokens, {job.precision}"
        f"{format_tuning(job)}"
    ) + (f" ({defaults} assumed)" if defaults else "")


def format_listing(words: Sequence[str]) -> str:
    """Words as people list them: a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def format_tuning(job: Job) -> str:
    """What sets a training apart from one of all weights, of one precision, on whole sequences."""
    training, words = job.training, [f"{name} in {own}" for name, own in job.module_precision]
    if (lora := training.lora) is not None:
        dropped = f", dropout {lora.dropout:g}" if lora.dropout else ""
        beside = f" beside weights in {lora.frozen_weights}" if lora.packs_weights else ""
        kind = "DoRA" if lora.dora else "LoRA"
        words.append(f"{kind} of rank {lora.rank} on {', '.join(lora.targets)}{dropped}{beside}")
    if training.frozen:
        words.append(f"frozen: {', '.join(training.frozen)}")
    if training.packed_lengths:
        words.append(f"packed (attention as of {job.attended_length} tokens)")
    if training.distillation is not None:
        words.append(f"distilled from {training.distillation.teacher.name}")
    if training.dpo is not None:
        ran = "shares the frozen weights" if training.lora else "holds its own weights"
        ready = training.dpo.precomputed
        kind = "KTO" if training.dpo.kto else "DPO"
        words.append(f"{kind} (its reference {'is precomputed' if ready else ran})")
    return "".join(f", {each}" for each in words)


def format_layout(job: Job, *, micro_batch: bool = True) -> str:
    """How the GPUs of a job share its work, degrees of one left out but TP's, PP's and DP's."""
    recipe = job.recipe
    degrees = [("TP", recipe.tp), ("PP", recipe.pp), ("DP", job.dp)]
    degrees += [(name, size) for name, size in (("CP", recipe.cp), ("EP", recipe.ep)) if size > 1]
    words = " x ".join(f"{name} {size}" for name, size in degrees)
    if recipe.zero_stage == 3:
        words += ", FSDP"
    return f"{words}, micro-batch {recipe.micro_batch}" if micro_batch else words


def format_seconds(seconds: float) -> str:
    """Seconds to four significant digits; milliseconds below one second."""
    if seconds < 1:
        return f"{seconds * 1e3:.4g} ms"
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds:.3f} s"


def format_long_time(seconds: float) -> str:
    """Hours below three days, then days."""
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"


def format_wait(seconds: float) -> str:
    """Seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


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


def format_error_bar(prediction: Prediction) -> str:
    """The interval in seconds and relative to the prediction."""
    if prediction.interval_s is None:
        return "none: this simulator gives no error bar"
    low, high = prediction.interval_s
    step_s = prediction.step_time_s
    words = (
        f"{format_seconds(low)} to {format_seconds(high)} ({low / step_s - 1:+.1%} to "
        f"{high / step_s - 1:+.1%}), where {LEVEL:.0%} of measured runs like it would lie"
    )
    if low > step_s:
        words += "; predictions of such runs were mostly too short"
    elif high < step_s:
        words += "; predictions of such runs were mostly too long"
    return words
