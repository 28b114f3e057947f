"""One search: ask a batch, apply tactics, simulate the rest, tell, until done.

Everything that decides (proposals, tactics, batch borders, ranking) happens in this process in
a fixed order; executors only turn recipes into predictions. So the answer depends on the seed
and never on the number of workers, and a resumed search repeats the stored one exactly before
it goes on.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.bounding import BOUNDED_SIMULATOR
from trainscout.optimizer.choices import choices
from trainscout.optimizer.executors import make_executor
from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.ledger import Ledger
from trainscout.optimizer.legs import legs_of
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.promotion import front_of, promote
from trainscout.optimizer.samplers import make_sampler
from trainscout.optimizer.samplers.base import Proposal, SearchSpec
from trainscout.optimizer.screen import Screen, Screened
from trainscout.optimizer.survey import INTERRUPTED, Survey
from trainscout.optimizer.survey_choice import forget_interrupted, survey_once
from trainscout.optimizer.trial import OnProgress, Progress, SearchResult
from trainscout.optimizer.warm_start import known_recipes, nearest_rows
from trainscout.pruning import apply_tactics, select_tactics
from trainscout.simulators.predictor.question.recipe import Recipe

if TYPE_CHECKING:
    from trainscout.optimizer.samplers.exact import ExactSampler
    from trainscout.optimizer.storage.stored import StoredExecutor
    from trainscout.optimizer.storage.trials import Mode


def run_search(
    asked: AskedSearch,
    *,
    storage: str | None = None,
    resume: bool = False,
    join: bool = False,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Search the space for the recipes of the question that are best under the objective.

    Args:
        asked: the question, and how it is searched.
        storage: a journal file's path or a database URL; None keeps nothing on disk.
        resume: continue the search that ``storage`` holds.
        join: continue it or begin it, together with other processes that do the same: each
            recipe is simulated by one of them, and all come to the same answer.
        on_progress: called after every batch, and while a large space is sifted.

    Returns:
        The trials and the best of them; on Ctrl-C those resolved so far (``interrupted``).

    Raises:
        InputError: for anything wrong in the arguments or the store, before simulating.
    """
    started_s = time.monotonic()
    question, objective, options = asked.question, asked.objective, asked.options
    surveyed, legs, surveying_s = prepare_search(asked, on_progress)
    forget_interrupted()
    workers = make_executor(asked.executor, question, asked.simulator)
    stored = None
    if storage is not None:
        mode: Mode = "join" if join else "resume" if resume else "new"
        workers = stored = stored_executor(
            storage, asked.identity(), mode, workers, surveyed, objective
        )
    screened = options.bounds and asked.spec.name == BOUNDED_SIMULATOR
    result = search_legs(
        legs,
        workers,
        screen=Screen(surveyed, objective, asked.spec, options.top_k) if screened else None,
        first=[*surveyed.first, *nearest_rows(surveyed, known_recipes(options))],
        on_progress=on_progress,
        started_s=started_s,
    )
    notes = (*_notes(surveyed), *workers.notes)
    if asked.promotion is not None and result.best and result.stopped != "interrupted":
        finalists = result.pareto if len(objective.names) > 1 else result.best
        promotion = make_executor(asked.executor, question, asked.promotion)
        promoted = promote(finalists, asked.promotion.name, promotion, objective)
        if promoted.trials:
            # Choices among these alone: steps of two simulators are not compared.
            result = dataclasses.replace(
                result,
                best=promoted.trials,
                pareto=front_of(promoted.trials, objective),
                choices=choices(promoted.trials, objective),
            )
        notes += (promoted.note,)
    return dataclasses.replace(
        result,
        wall_s=time.monotonic() - started_s + surveying_s,
        resumed_trials=0 if stored is None else stored.restored,
        unstored=None if stored is None else stored.unstored,
        notes=notes,
        numerics=surveyed.space.numerics,
        unproved=surveyed.why_sampled,
    )


def search_legs(
    legs: Sequence[SearchSpec],
    workers: Executor,
    *,
    screen: Screen | None = None,
    first: Sequence[int] = (),
    on_progress: OnProgress | None = None,
    started_s: float,
) -> SearchResult:
    """Search what ``legs`` surveyed, whatever its recipes are; what was found, without notes.

    ``screen``: rules recipes out by bounds. ``first``: rows to try first. ``started_s``: when the
    search began, on the monotonic clock.
    """
    options, surveyed, objective = legs[0].options, legs[0].survey, legs[0].objective
    ledger = Ledger(surveyed, objective, options.top_k)
    search = Search(legs, ledger, workers, screen, first)
    with workers:
        try:
            stopped = search.run(started_s, on_progress)
        except KeyboardInterrupt:
            stopped = "interrupted"
    if surveyed.why_sampled == INTERRUPTED:
        stopped = "interrupted"
    return SearchResult(
        trials=tuple(ledger.trials),
        best=tuple(ledger.best(options.top_k)),
        pareto=tuple(ledger.pareto()),
        objectives=objective.names,
        stopped=stopped,
        wall_s=time.monotonic() - started_s,
        space_size=surveyed.distinct_points,
        certificate=None if search.proof is None else search.proof.certificate(),
        tight=tuple(ledger.tight()),
        choices=ledger.choices(),
    )


def prepare_search(
    asked: AskedSearch, on_progress: OnProgress | None = None
) -> tuple[Survey, tuple[SearchSpec, ...], float]:
    """Everything of ``run_search`` that can refuse its arguments, but for its storage; nothing
    is written. The survey, the searches of it, and the seconds it took if it was there already.

    Raises:
        InputError: for anything wrong in what is asked.
    """
    asked.check()
    surveyed, surveying_s = survey_once(asked, on_progress)
    legs = legs_of(
        SearchSpec(asked.options, surveyed, asked.objective, asked.seed, asked.spec, on_progress)
    )
    make_sampler(legs[0])
    return surveyed, legs, surveying_s


def stored_executor(
    storage: str,
    question: Mapping[str, Any],
    mode: Mode,
    workers: Executor,
    surveyed: Survey,
    objective: Objective,
    read: Callable[[Mapping[str, Any]], Recipe] = lambda record: Recipe(**record),
) -> StoredExecutor:
    """Workers around which ``storage`` keeps what they simulated of ``question``.

    ``read``: a recipe from what ``dataclasses.asdict`` made of it.
    """
    from trainscout.optimizer.storage.stored import StoredExecutor
    from trainscout.optimizer.storage.trials import TrialStore

    store = TrialStore(storage, question, surveyed.space, objective, mode, read)
    return StoredExecutor(
        workers, store, surveyed.point_of, lambda outcome: _refuse_nonsense(outcome, objective)
    )


def _refuse_nonsense(outcome: Outcome, objective: Objective) -> Outcome:
    """An objective that is not a number is a failure of the simulator, not a value."""
    if outcome.prediction is None:
        return outcome
    try:
        objective.values(outcome.prediction)
    except ArithmeticError as error:
        return dataclasses.replace(outcome, prediction=None, error=str(error))
    return outcome


class Search:
    """The loop. Owns nothing but the order in which its parts are called."""

    def __init__(
        self,
        legs: Sequence[SearchSpec],
        ledger: Ledger,
        executor: Executor,
        screen: Screen | None = None,
        first: Sequence[int] = (),
    ) -> None:
        self._legs = legs
        self._survey, self._objective = legs[0].survey, legs[0].objective
        self._ledger = ledger
        self._executor = executor
        self._screen = screen
        # Rows to try before a sampler proposes any.
        self._first = deque(first)
        self.proof: ExactSampler | None = None
        """Of the leg that proves, whoever has found what is known since."""

    def run(self, started_s: float, on_progress: OnProgress | None) -> str:
        """Search until something says stop; returns why (see ``SearchResult.stopped``)."""
        stopped = "space_exhausted"
        for number, leg in enumerate(self._legs, start=1):
            self._begin(leg, last=number == len(self._legs))
            stopped = self._run_leg(started_s, on_progress)
            proving = self._sampler.proof is not None
            if stopped in ("proved", "timeout") or (proving and stopped == "n_trials"):
                break
        return stopped

    def _begin(self, leg: SearchSpec, *, last: bool) -> None:
        """Hand over to a leg's sampler, which learns what is known."""
        options, known = leg.options, self._ledger.considered
        self._known = known
        self._options, self._sampler = options, make_sampler(leg)
        for row, evaluation in self._ledger.evaluations.items():
            self._sampler.learn(self._survey.points[row], evaluation)
        proving = self._sampler.proof is not None
        if proving:
            self.proof = self._sampler.proof
        self._tactics = select_tactics(options.pruning)
        self._until_s = None
        if proving and not last and options.proof_timeout_s is not None:
            self._until_s = time.monotonic() + options.proof_timeout_s
        # What was only inferred of a recipe is no proof: it may be asked for again.
        self._limit = known + len(self._survey) if proving else len(self._survey)
        self._n_trials = None if options.n_trials is None else known + options.n_trials
        if self._n_trials is not None:
            self._limit = min(self._limit, self._n_trials)

    def _run_leg(self, started_s: float, on_progress: OnProgress | None) -> str:
        while (stopped := self._why_stop(started_s)) is None:
            proposals, rows = self._ask()
            if not rows:
                return "proved"
            self._resolve(rows)
            self._tell(proposals, rows)
            if on_progress is not None:
                on_progress(self._progress(started_s))
        return stopped

    def _why_stop(self, started_s: float) -> str | None:
        options, ledger, proof = self._options, self._ledger, self._sampler.proof
        if proof is None and not ledger.unseen.any():
            return "space_exhausted"
        if proof is None and self.proof is not None and not self.proof.open_recipes():
            return "proved"
        if self._n_trials is not None and ledger.considered >= self._n_trials:
            return "n_trials"
        if (
            options.patience is not None
            and ledger.considered >= options.min_trials
            and ledger.stable_for >= options.patience
        ):
            return "converged"
        now_s = time.monotonic()
        if options.timeout_s is not None and now_s - started_s >= options.timeout_s:
            return "timeout"
        # Without a batch nothing is bounded, and nothing known of what is left.
        began = ledger.considered > self._known
        if self._until_s is not None and began and now_s >= self._until_s:
            return "proof_timeout"
        return None

    def _ask(self) -> tuple[list[tuple[Proposal, int]], list[int]]:
        """A batch of unseen rows, and the proposals with the row each stands for.

        A proposal that cannot be launched stands for the nearest recipe that can. One that is
        resolved already still brings a new recipe, its nearest unseen neighbour, so that every
        sampler makes progress however often it repeats itself; one that proves never repeats
        itself, and asks to have what was inferred simulated.
        """
        ledger, survey_, proving = self._ledger, self._survey, self._sampler.proof is not None
        wanted = min(self._options.batch_size, self._limit - ledger.considered)
        proposals: list[tuple[Proposal, int]] = []
        rows = [self._first.popleft() for _ in range(min(wanted, len(self._first)))]
        ledger.unseen[rows] = False
        if rows and proving:
            return proposals, rows
        while len(rows) < wanted:
            proposal = self._sampler.ask()
            if proposal is None:
                break
            point = survey_.space.canonical(proposal.indices)
            row = survey_.row_of.get(point)
            if row is None:
                ledger.add_invalid(point)
                if self._sampler.exhaustive:
                    continue
                row = survey_.nearest(point)
            proposals.append((proposal, row))
            if not ledger.unseen[row] and not proving:
                row = survey_.nearest(point, ledger.unseen)
            ledger.unseen[row] = False
            rows.append(row)
        return proposals, rows

    def _resolve(self, rows: Sequence[int]) -> None:
        """Screen, prune or simulate the rows, and record them in the order asked."""
        ledger, recipes, question = self._ledger, self._survey.recipes, self._survey.space.question
        screened: dict[int, Screened] = {}
        # Who lists every recipe is asked for the truth, or has bounds of its own.
        if self._screen is not None and not self._sampler.exhaustive:
            screened = self._screen.resolve(rows, ledger.best_losses(self._options.top_k))
        verdicts = {
            row: verdict
            for row in rows
            if row not in screened
            and (
                verdict := apply_tactics(question.job(recipes[row]), ledger.history, self._tactics)
            )
        }
        new = [row for row in rows if row not in screened and row not in verdicts]
        outcomes: dict[int, Outcome] = {}
        try:
            for position, outcome in self._executor.run([recipes[row] for row in new]):
                outcomes[new[position]] = outcome
        finally:
            # Interrupted, the search ends with what this batch had come to.
            for row in rows:
                if row in screened:
                    ledger.add_screened(row, screened[row])
                elif row in verdicts:
                    ledger.add_pruned(row, verdicts[row])
                elif row in outcomes:
                    ledger.add_simulated(row, _refuse_nonsense(outcomes[row], self._objective))

    def _tell(self, proposals: Sequence[tuple[Proposal, int]], rows: Sequence[int]) -> None:
        evaluations, points = self._ledger.evaluations, self._survey.points
        for proposal, row in proposals:
            self._sampler.tell(proposal, evaluations[row])
        stood_for = {row for _, row in proposals}
        for row in rows:
            if row not in stood_for:
                self._sampler.learn(points[row], evaluations[row])
        if self.proof is not None and self._sampler.proof is None:
            for row in rows:
                self.proof.learn(points[row], evaluations[row])

    def _progress(self, started_s: float) -> Progress:
        ledger = self._ledger
        elapsed_s = time.monotonic() - started_s
        considered = ledger.considered
        limit, proof = self._limit, self._sampler.proof
        eta_s = elapsed_s / considered * (limit - considered) if considered else None
        if proof is not None:
            limit = min(limit, considered + proof.open_recipes())
            # Each result rules out some of what is open: nobody knows how many.
            eta_s = None if limit > considered else 0.0
        best = ledger.best(1)
        return Progress(
            considered, limit, dict(ledger.counts), best[0] if best else None, elapsed_s, eta_s
        )


# What a search looked at of ``space.numerics``.
_NUMERICS = {
    "declared": "numerics as declared: {}, gradients and optimizer states as each framework keeps "
    "them; space.numerics=16bit also looks at 16-bit ones, any at 8-bit linear layers too",
    "16bit": "numerics: {}, gradients and optimizer states in 16 bits too; space.numerics=any "
    "also looks at 8-bit linear layers",
    "any": "numerics: gradients, optimizer states and linear layers in fewer bits than declared "
    "({}), too",
}


def _notes(surveyed: Survey) -> tuple[str, ...]:
    space = surveyed.space
    rejected = ", ".join(
        f"{entry.count:,} by {rule}"
        for rule, entry in sorted(surveyed.rejected.items(), key=lambda item: -item[1].count)
    )
    note = (
        f"space {space.name}: {surveyed.distinct_points:,} distinct points, "
        f"{surveyed.num_recipes:,} launchable recipes"
    )
    note = f"{note}; not launchable: {rejected}" if rejected else note
    if surveyed.why_sampled is not None:
        note = f"some of {note}: {surveyed.why_sampled}"
    return (note, _NUMERICS[space.numerics].format(space.question.training.precision))
