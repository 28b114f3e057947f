"""What one cell's search found, small enough to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainscout.optimizer.study import run_search
from trainscout.optimizer.trial import SearchResult
from trainscout.planning.cells import Cell, SearchSettings
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe

WhyNothing = Callable[[SearchResult, Callable[[Recipe], Job]], str]
"""The words for why a search found nothing; importable, since worker processes call it."""


@dataclass(frozen=True)
class Best:
    """The fastest recipe of a cell, and its prediction but for what prices and run lengths move.

    ``micro_batches`` are those of each replica; ``interval_s`` is the step's error bar.
    """

    recipe: Recipe
    dp: int
    micro_batches: int
    step_time_s: float
    interval_s: tuple[float, float] | None
    tokens_per_s: float
    mfu: float
    breakdown_s: dict[str, float]
    peak_reserved_bytes: int
    needed_bytes: int
    capacity_bytes: int
    evidence_share: dict[str, float]
    estimated_operations: tuple[str, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The outcome of one cell.

    ``status``: ``fits``, ``nothing_fits`` or ``failed``; ``reason`` says in words why there is no
    ``best``. ``proved``: an exact search went to its end. ``stopped`` is the search's (see
    ``SearchResult``), None where it did not even start; ``simulated`` counts its recipes.
    """

    status: str
    best: Best | None = None
    reason: str | None = None
    stopped: str | None = None
    proved: bool = False
    simulated: int = 0
    wall_s: float = 0.0

    @property
    def final(self) -> bool:
        """Asking again would give the same: neither a failure nor a search cut short."""
        return self.status != "failed" and self.stopped != "timeout"


def answer_cell(cell: Cell, settings: SearchSettings, why_nothing: WhyNothing) -> Answer:
    """Search one cell in this process. What goes wrong is its answer.

    Raises:
        KeyboardInterrupt: on Ctrl-C, which a search itself takes for its end.
    """
    question = cell.question
    try:
        result = run_search(settings.asked(cell))
    except Exception as error:  # one impossible cell must not end the study
        return failed(error)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    return _answer(result, question, why_nothing)


def failed(error: Exception) -> Answer:
    """The answer of a cell whose search could not be run."""
    named = isinstance(error, ValueError)
    return Answer("failed", reason=str(error) if named else f"{type(error).__name__}: {error}")


def _answer(result: SearchResult, question: Question, why_nothing: WhyNothing) -> Answer:
    best = _best(result, question)
    if best is not None:
        status, reason = "fits", None
    else:
        # Where recipes failed, nobody knows whether one would have fitted.
        status = "failed" if result.counts()["failed"] else "nothing_fits"
        reason = why_nothing(result, question.job)
    return Answer(
        status=status,
        best=best,
        reason=reason,
        stopped=result.stopped,
        proved=result.certificate is not None and result.certificate.proved,
        simulated=sum(trial.prediction is not None for trial in result.trials),
        wall_s=result.wall_s,
    )


def _best(result: SearchResult, question: Question) -> Best | None:
    if not result.best or (prediction := result.best[0].prediction) is None:
        return None
    job = question.job(result.best[0].recipe)
    return Best(
        recipe=job.recipe,
        dp=job.dp,
        micro_batches=job.num_micro_batches,
        **{name: getattr(prediction, name) for name in _OF_PREDICTION},
        **{name: getattr(prediction.memory, name) for name in _OF_MEMORY},
    )


_OF_PREDICTION = (
    *("step_time_s", "interval_s", "tokens_per_s", "mfu", "breakdown_s"),
    *("evidence_share", "estimated_operations", "assumptions"),
)
_OF_MEMORY = ("peak_reserved_bytes", "needed_bytes", "capacity_bytes")
