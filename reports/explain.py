"""Sentences: why the best recipe wins, and why nothing was found."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.trial import SearchResult, Trial
from reports.wording import gib_words, part_words, recipe_words, seconds_words
from simulators.job import Job, Recipe

JobOf = Callable[[Recipe], Job]

# Differences below this share of the step are not worth a word.
_NOTABLE_SHARE = 0.001


def why_best(best: Trial, runner_up: Trial | None, job_of: JobOf) -> str:
    """One sentence: what the best recipe spends less time on than the runner-up, and what more.

    Parts are those of the two predictions' ``breakdown_s``, largest difference first.
    """
    ours = best.prediction
    if ours is None:
        raise ValueError("the best trial has no prediction")
    if runner_up is None or runner_up.prediction is None:
        return "It is the only recipe that fits."
    theirs = runner_up.prediction
    rival = f"#2 ({recipe_words(runner_up.recipe, job_of(runner_up.recipe).dp)})"
    threshold_s = _NOTABLE_SHARE * ours.step_time_s
    less, more = _differences(ours.breakdown_s, theirs.breakdown_s, threshold_s)
    gain_s = theirs.step_time_s - ours.step_time_s
    if abs(gain_s) < threshold_s:
        sentence = f"#1 and {rival} take the same time within 0.1 %"
        headroom_bytes = ours.memory.headroom_bytes - theirs.memory.headroom_bytes
        if abs(headroom_bytes) >= 0.05 * 2**30:
            word = "more" if headroom_bytes > 0 else "less"
            sentence += f"; #1 has {gib_words(abs(headroom_bytes))} {word} headroom"
        return sentence + "."
    faster = "faster" if gain_s > 0 else "slower"
    share = abs(gain_s) / theirs.step_time_s
    sentence = f"#1 is {seconds_words(abs(gain_s))} a step ({share:.1%}) {faster} than {rival}"
    if less:
        sentence += f": it spends {_listing(less, 'less')}"
        sentence += f", and {_listing(more, 'more')}" if more else ""
    elif more:
        sentence += f": it spends {_listing(more, 'more')}"
    return sentence + "."


Part = tuple[str, float]


def _differences(
    ours: dict[str, float], theirs: dict[str, float], threshold_s: float
) -> tuple[list[Part], list[Part]]:
    """Parts we spend notably less and more seconds on, largest first, seconds positive."""
    names = list(dict.fromkeys([*ours, *theirs]))
    gaps = [(name, theirs.get(name, 0.0) - ours.get(name, 0.0)) for name in names]
    gaps.sort(key=lambda part: -abs(part[1]))
    less = [(name, gap) for name, gap in gaps if gap > threshold_s]
    more = [(name, -gap) for name, gap in gaps if gap < -threshold_s]
    return less, more


def _listing(parts: list[Part], word: str) -> str:
    shown = [f"{seconds_words(gap)} {word} on {part_words(name)}" for name, gap in parts[:3]]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def why_nothing_fits(result: SearchResult, job_of: JobOf) -> str:
    """What stood in the way when no trial came out ``ok``: the closest miss, and the rules."""
    counts = result.counts()
    lines = [f"No recipe fits: {sum(counts.values())} points were asked, none came out ok."]
    missed = [t for t in result.trials if t.status == "oom" and t.prediction is not None]
    if missed:
        lines.append("Closest miss: " + _miss_words(max(missed, key=_headroom_bytes), job_of))
    for status in ("invalid", "pruned"):
        rules = result.counts_by_rule(status)
        for rule, count in sorted(rules.items(), key=lambda item: -item[1]):
            example = next(t for t in result.trials if t.status == status and t.rule == rule)
            reason = f" (for example: {example.reason})" if example.reason else ""
            lines.append(f"{count} {status} by {rule}{reason}")
    failed = [t for t in result.trials if t.status == "failed"]
    if failed:
        lines.append(f"{len(failed)} failed in the simulator (the first: {failed[0].reason})")
    return "\n".join(lines)


def _headroom_bytes(trial: Trial) -> int:
    assert trial.prediction is not None  # filtered by the caller
    return trial.prediction.memory.headroom_bytes


def _miss_words(trial: Trial, job_of: JobOf) -> str:
    assert trial.prediction is not None  # filtered by the caller
    memory = trial.prediction.memory
    return (
        f"{recipe_words(trial.recipe, job_of(trial.recipe).dp)} lacks "
        f"{gib_words(-memory.headroom_bytes)} on stage {memory.worst_stage} "
        f"({gib_words(memory.peak_reserved_bytes)} needed, "
        f"{gib_words(memory.capacity_bytes)} usable)."
    )
