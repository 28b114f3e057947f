"""What a search produces: trials, and the result made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainscout.optimizer.certificate import Certificate
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.recipe import Recipe

STATUSES = ("ok", "tight", "oom", "pruned", "invalid", "failed")


@dataclass(frozen=True)
class Trial:
    """One distinct point that was asked.

    ``status``: ``ok`` (simulated, fits), ``tight`` (may fit: ``predictor.memory.bands``), ``oom``
    (does not), ``pruned`` (a tactic knew the outcome: ``rule`` names it), ``invalid`` (breaks the
    validity rule ``rule``), ``failed`` (the simulator raised: ``error``). ``values`` are the
    objective values of an ``ok`` or ``tight`` trial, or of a ``pruned`` one whose runtime the
    tactic supplied; ``reason`` says in words why it was pruned, invalid or failed. Where a
    promotion simulator has been asked too, ``prediction`` and ``values`` are its, and
    ``searched_values`` the search's.
    """

    number: int
    point: dict[str, Any]
    recipe: Recipe
    status: str
    rule: str | None = None
    reason: str | None = None
    values: tuple[float, ...] | None = None
    prediction: Prediction | None = None
    duration_s: float = 0.0
    searched_values: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Choices:
    """Of recipes that fit, under one objective.

    ``layouts``: the best of each of the best layouts, best first. ``roomy``: the best that needs
    clearly less memory than the best of all. ``simple``: of those nearly as good as the best, the
    one with the fewest switches. None: no other recipe is.
    """

    layouts: tuple[Trial, ...] = ()
    roomy: Trial | None = None
    simple: Trial | None = None


@dataclass(frozen=True)
class SearchResult:
    """The outcome of one search.

    ``best`` holds the top ``ok`` trials, best first; ``pareto`` the non-dominated ones (equal
    to ``best[:1]`` for one objective); with several, ``best`` goes by the first objective.
    ``tight``: of those that may fit and that nothing which fits beats (or, where nothing fits, of
    all that may) the ones worth most (``optimizer.choices``).
    ``space_size`` counts the distinct points of the space. ``stopped`` is why it ended:
    ``n_trials``, ``converged``, ``space_exhausted``, ``proved``, ``interrupted`` or ``timeout``.
    ``unstored`` is why the store lacks some of the trials; ``certificate`` is the proof of an
    exact search; ``choices`` what else there is to choose from; ``numerics`` what of what is
    computed the space may change, None where no space says; ``unproved`` why bounds prove nothing
    of the space, where they were to.
    """

    trials: tuple[Trial, ...]
    best: tuple[Trial, ...]
    pareto: tuple[Trial, ...]
    objectives: tuple[str, ...]
    stopped: str
    wall_s: float
    space_size: int
    resumed_trials: int = 0
    unstored: OSError | None = None
    notes: tuple[str, ...] = field(default=())
    certificate: Certificate | None = None
    tight: tuple[Trial, ...] = ()
    choices: Choices = field(default=Choices())
    numerics: str | None = None
    unproved: str | None = None

    def counts(self) -> dict[str, int]:
        """Number of trials by status, zeros included."""
        counts = dict.fromkeys(STATUSES, 0)
        for trial in self.trials:
            counts[trial.status] += 1
        return counts

    def counts_by_rule(self, status: str) -> dict[str, int]:
        """Number of trials of one status by the rule that decided them."""
        counts: dict[str, int] = {}
        for trial in self.trials:
            if trial.status == status and trial.rule:
                counts[trial.rule] = counts.get(trial.rule, 0) + 1
        return counts


@dataclass(frozen=True)
class Progress:
    """Where a running search stands, once per batch; or the listing, bounding or sifting of its
    space.

    ``considered`` counts distinct launchable recipes so far, or what else is ``counted``, and
    ``limit`` how many there will be at most (None: nobody knows); ``eta_s`` is None before the
    first batch is done.
    """

    considered: int
    limit: int | None
    counts: dict[str, int]
    best: Trial | None
    elapsed_s: float
    eta_s: float | None
    counted: str = "recipes"


OnProgress = Callable[[Progress], None]
