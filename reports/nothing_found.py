"""What to say when a search found nothing: what stood in the way, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.explain import JobOf
from trainscout.reports.proof import format_proof
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_chance, format_gib, format_recipe, format_seconds

if TYPE_CHECKING:
    from trainscout.optimizer.would_fit import WouldFit
    from trainscout.simulators.predictor.answer.prediction import Prediction


def why_nothing_fits(result: SearchResult, job_of: JobOf) -> str:
    """What stood in the way when no trial came out ``ok``, and what to change; a line each."""
    counts = result.counts()
    considered = len(result.trials) - counts["invalid"]
    if considered == 0:
        return "\n".join([_NOTHING_ASKED[result.stopped], *_rule_lines(result)])
    if counts["failed"] == considered:
        lines = [f"No recipe could be simulated: all {considered:,} failed."]
    else:
        of = f"{considered:,} that were tried"
        if result.certificate is not None and result.certificate.proved:
            of = f"{result.certificate.recipes:,} that can be launched"
        lines = [f"No recipe fits, of {of}."]
    lines += format_tight(result, job_of)
    lines += [f"Closest miss: {_format_miss(each, job_of)}" for each in closest_misses(result)[:1]]
    lines += _rule_lines(result)
    failed = [trial for trial in result.trials if trial.status == "failed"]
    if failed:
        lines.append(f"{len(failed):,} failed in the simulator (the first: {failed[0].reason})")
    if result.stopped in _CUT_SHORT:
        rest = result.space_size - len(result.trials)
        if rest > 0:
            lines.append(
                f"{rest:,} points of the space were not looked at: {_CUT_SHORT[result.stopped]}"
            )
    return "\n".join(lines)


def why_no_recipe(result: SearchResult, job_of: JobOf) -> str:
    """As ``why_nothing_fits``, an exact search's end with its proof."""
    words = why_nothing_fits(result, job_of)
    if result.certificate is not None:
        words += "\n" + format_proof(result.certificate)
    return words


def format_tight(result: SearchResult, job_of: JobOf) -> list[str]:
    """The recipes that may fit and would be better than the best that does, a line each."""
    lines = []
    for trial in result.tight:
        prediction = predicted(trial)
        memory = prediction.memory
        name = format_recipe(trial.recipe, job_of(trial.recipe).dp)
        room = (
            f"{format_gib(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)}, "
            f"{format_chance(memory)}"
        )
        if result.best:
            step_s = predicted(result.best[0]).step_time_s
            gain = f"{1 - prediction.step_time_s / step_s:.1%} faster if it fits"
        else:
            gain = f"{format_seconds(prediction.step_time_s)} a step if it fits"
        lines.append(f"{gain}: {name} ({room})")
    return lines


_NOTHING_ASKED = {
    "timeout": "No recipe was looked at: the search's time was up before the first. Give "
    "search.timeout_s more, or null.",
    "interrupted": "No recipe was looked at: the search was interrupted before the first was "
    "done. resume=true goes on with it.",
}
_CUT_SHORT = {
    "n_trials": "search.n_trials= gives more of them a try, search=exact covers all.",
    "converged": "search.patience=null goes on, search=exact covers all.",
    "timeout": "search.timeout_s= gives more time.",
    "interrupted": "resume=true goes on.",
}


def closest_misses(result: SearchResult) -> list[Trial]:
    """Of the recipes that were simulated and do not fit, those that lack least, closest first."""
    missed = [t for t in result.trials if t.status == "oom" and t.prediction is not None]
    return sorted(missed, key=lambda trial: predicted(trial).memory.missing_bytes)


def memory_stood_in_the_way(result: SearchResult) -> bool:
    """Whether something was found not to fit, by simulation or by its bound."""
    from trainscout.optimizer.screen import MEMORY_RULE

    return bool(closest_misses(result)) or MEMORY_RULE in result.counts_by_rule("pruned")


def _rule_lines(result: SearchResult) -> list[str]:
    lines = []
    for status in ("invalid", "pruned"):
        rules = result.counts_by_rule(status)
        for rule, count in sorted(rules.items(), key=lambda item: -item[1]):
            example = next(t for t in result.trials if t.status == status and t.rule == rule)
            reason = f" (for example: {example.reason})" if example.reason else ""
            lines.append(f"{count:,} {status} by {rule}{reason}")
    return lines


def format_relief(found: Sequence[WouldFit]) -> list[str]:
    """The changes that were simulated and fit, a line each; or that none was found."""
    if not found:
        return [
            "Nothing near would fit either, of what was simulated: other knobs for the closest "
            "miss, up to 64 times the nodes (if NICs connect them), GPUs with more memory."
        ]
    return [
        f"Would fit (simulated): {' '.join(each.settings)}, with "
        f"{format_recipe(each.job.recipe, each.job.dp)}: "
        f"{format_gib(each.prediction.memory.headroom_bytes)} free of "
        f"{format_gib(each.prediction.memory.capacity_bytes)} usable."
        for each in found
    ]


def _format_miss(trial: Trial, job_of: JobOf) -> str:
    memory = predicted(trial).memory
    return (
        f"{format_recipe(trial.recipe, job_of(trial.recipe).dp)} lacks "
        f"{format_gib(memory.missing_bytes)} {_format_where(predicted(trial))}."
    )


def _format_where(prediction: Prediction) -> str:
    memory = prediction.memory
    where = f"on stage {memory.worst_stage}"
    needed, usable = memory.needed_bytes, memory.capacity_bytes
    if memory.missing_bytes > -memory.headroom_bytes:
        where = "of the host's memory a GPU"
        needed, usable = memory.host_bytes, memory.host_capacity_bytes
    return f"{where} ({format_gib(needed)} needed, {format_gib(usable)} usable)"
