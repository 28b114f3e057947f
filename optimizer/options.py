"""The search's own settings; ``conf/search`` fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pruning import TACTICS, select_tactics
from simulators.errors import InputError, require_choice, require_positive

SAMPLERS = ("tpe", "gp", "nsga2", "cmaes", "random", "grid")
EXECUTORS = ("loky", "serial")


@dataclass(frozen=True)
class SearchOptions:
    """How to search and when to stop.

    ``n_trials`` counts distinct launchable recipes, simulated or settled by a tactic; None
    means no limit. The search also ends once the ``stable_top`` best have not changed for
    ``patience`` recipes that fit (None: never), but not before ``min_trials``.
    ``batch_size`` recipes are asked at a time whatever the number of workers, so that the
    workers do not change the answer. ``top_k`` is how many best recipes are kept and protected
    from pruning; ``pruning`` the tactics in use; ``options`` goes to the sampler as it is.
    """

    sampler: str = "tpe"
    n_trials: int | None = 600
    patience: int | None = 100
    min_trials: int = 500
    stable_top: int = 5
    batch_size: int = 32
    timeout_s: float | None = None
    top_k: int = 10
    pruning: tuple[str, ...] = tuple(TACTICS)
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse settings that mean nothing.

        Raises:
            InputError: naming the field.
        """
        require_choice("search.sampler", self.sampler, SAMPLERS)
        for name in ("n_trials", "patience", "stable_top", "batch_size", "top_k"):
            value = getattr(self, name)
            if value is None and name in ("n_trials", "patience"):
                continue
            _require_whole(f"search.{name}", value)
        _require_whole("search.min_trials", self.min_trials, allow_zero=True)
        if self.timeout_s is not None:
            require_positive("search.timeout_s", self.timeout_s)
        select_tactics(self.pruning)


@dataclass(frozen=True)
class ExecutorOptions:
    """Who simulates: ``serial`` in this process, or ``loky`` in ``n_jobs`` worker processes.

    ``n_jobs`` -1 means one per core.
    """

    name: str = "loky"
    n_jobs: int = -1

    def check(self) -> None:
        """Refuse settings that mean nothing.

        Raises:
            InputError: naming the field.
        """
        require_choice("executor.name", self.name, EXECUTORS)
        if self.n_jobs != -1:
            _require_whole("executor.n_jobs", self.n_jobs)


def _require_whole(field_name: str, value: Any, *, allow_zero: bool = False) -> None:
    require_positive(field_name, value, allow_zero=allow_zero)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(field_name, value, "is not a whole number")
