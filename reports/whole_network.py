"""What an answer would be if a network that nobody validated counted whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainscout.optimizer.trial import SearchResult
from trainscout.reports.trials import decided_between, predicted
from trainscout.reports.wording import format_recipe, format_seconds
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED, stated_share
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.fabric import counted_share
from trainscout.simulators.registry import SimulatorSpec, get_simulator


def _counted_whole(
    jobs: Sequence[Job], spec: SimulatorSpec, steps_s: Sequence[float]
) -> str | None:
    """What the first of the jobs, which take ``steps_s``, would take, and which would be
    fastest, in words; None where its network counts whole, its calibration knows what the
    network gives, or a simulator is too slow to ask."""
    cluster = jobs[0].cluster
    if spec.name != "replay" or spec.network or spec.calibration or counted_share(cluster) == 1:
        return None
    simulator = get_simulator(spec)
    assert isinstance(simulator, ReplaySimulator)
    whole = replace(cluster, oversubscription=1.0)
    seconds = [simulator.step_time_s(replace(job, cluster=whole)) for job in jobs]
    change = seconds[0] / steps_s[0] - 1
    words = f"counted whole, the step takes {format_seconds(seconds[0])} ({change:+.1%})"
    if len(jobs) == 1:
        return words
    fastest = min(range(len(jobs)), key=seconds.__getitem__)
    name = format_recipe(jobs[fastest].recipe, jobs[fastest].dp)
    if fastest == min(range(len(jobs)), key=steps_s.__getitem__):
        return f"{words} and {f'{name} ' if fastest else ''}stays the fastest shown that fits"
    return f"{words}, and {name} would be faster: {format_seconds(seconds[fastest])}"


def with_whole_network(prediction: Prediction, job: Job, spec: SimulatorSpec) -> Prediction:
    """The prediction, with what it would be beside the assumption that a part is counted."""
    whole = _counted_whole([job], spec, [prediction.step_time_s])
    if whole is None:
        return prediction
    stated = (
        f"{each}; {whole}" if each.startswith(UNVALIDATED) else each
        for each in prediction.assumptions
    )
    return replace(prediction, assumptions=tuple(stated))


def with_network_note(
    result: SearchResult, question: Question, spec: SimulatorSpec
) -> SearchResult:
    """The result with a note on what of the network it counts, where nobody says what that gives.

    Of a simulator of the user's own nothing is known."""
    stated = stated_share(question.cluster, switches=spec.network is not None)
    if not result.best or stated is None or ":" in spec.name:
        return result
    trials = decided_between(result)
    jobs = [question.job(trial.recipe) for trial in trials]
    whole = _counted_whole(jobs, spec, [predicted(trial).step_time_s for trial in trials])
    if whole is not None:
        stated = (
            f"{UNVALIDATED}: {counted_share(question.cluster):.0%} of its rate is counted (why: "
            f"docs/collectives.md); {whole} (cluster.oversubscription=1 asks so); nccl-tests over "
            "2 and all nodes would tell (trainscout collectives read)"
        )
    return replace(result, notes=(*result.notes, stated))


def network_note(result: SearchResult) -> str | None:
    """What ``with_network_note`` said."""
    return next((note for note in result.notes if note.startswith(UNVALIDATED)), None)
