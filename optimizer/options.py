"""The search's own settings; ``conf/search`` fills them in."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

from trainscout.pruning import TACTICS, select_tactics
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

SAMPLERS = ("tpe", "gp", "nsga2", "cmaes", "cma", "random", "grid", "exact")

# Name, and the package it needs beyond those that every installation has.
EXECUTORS: dict[str, str | None] = {
    "loky": None,
    "serial": None,
    "dask": "distributed",
    "ray": "ray",
    "slurm": "submitit",
}


@dataclass(frozen=True)
class SearchOptions:
    """How to search and when to stop.

    ``sampler`` proposes recipes; ``timeout_s``: the search ends after so long (None: never).
    ``n_trials`` counts distinct launchable recipes, simulated or settled by a tactic; None means
    no limit. The search also ends once the ``stable_top`` best have not changed for ``patience``
    recipes that fit (None: never), but not before ``min_trials``. ``batch_size`` recipes are asked
    at a time whatever the number of workers, so that the workers do not change the answer.
    ``top_k`` is how many best recipes are kept and protected from pruning; ``pruning``: the
    tactics in use; ``bounds``: recipes that their bounds rule out are not simulated, where the
    simulator has bounds (``grid`` simulates all the same); ``options`` goes to the sampler as is.
    ``warm_start``: a file of recipes to try first (or a search's directory: its best ones), moved
    to the nearest that the space holds. ``promote_to``: a costlier simulator that looks at the
    ``top_k`` best again and ranks them anew. ``storage`` is where simulated recipes are kept: a
    journal file's path or a database URL (None: a journal file among the search's results).
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
    bounds: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    warm_start: str | None = None
    promote_to: str | None = None
    storage: str | None = None

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
        if self.storage is not None and not self.storage.strip():
            raise InputError("search.storage", self.storage, "is empty", "a path, a URL, or null")


@dataclass(frozen=True)
class ExecutorOptions:
    """Who simulates, and when a recipe is given up.

    ``name``: ``serial`` in this process, ``loky`` in processes of this machine, ``dask``,
    ``ray`` or ``slurm`` on a cluster. ``n_jobs`` workers; -1 means one per core.
    A recipe that takes longer than ``trial_timeout_s`` in a worker, or takes it down, runs once
    more and then counts as failed (None: waits for ever). ``pin_cores`` keeps each worker on
    a core of its own. ``address``: a running Dask or Ray cluster (None: one on this machine).
    ``options`` go to submitit.
    """

    name: str = "loky"
    n_jobs: int = -1
    trial_timeout_s: float | None = 600.0
    pin_cores: bool = False
    address: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse settings that mean nothing, and executors whose package is missing.

        Raises:
            InputError: naming the field.
        """
        require_choice("executor.name", self.name, tuple(EXECUTORS))
        if self.n_jobs != -1:
            _require_whole("executor.n_jobs", self.n_jobs)
        elif self.name == "slurm":
            raise InputError("executor.n_jobs", -1, "is no number of workers", "1 or more")
        if self.trial_timeout_s is not None:
            require_positive("executor.trial_timeout_s", self.trial_timeout_s)
        if self.address is not None and self.name not in ("dask", "ray"):
            raise InputError(
                "executor.address", self.address, f"means nothing to {self.name}", "null"
            )
        if self.options and self.name != "slurm":
            raise InputError(
                "executor.options", dict(self.options), f"{self.name} takes no options"
            )
        package = EXECUTORS[self.name]
        if package is not None and importlib.util.find_spec(package) is None:
            raise InputError(
                "executor.name",
                self.name,
                f"needs {package}, which is not installed",
                f"pip install 'trainscout[{self.name}]', or loky, serial",
            )


def _require_whole(field_name: str, value: Any, *, allow_zero: bool = False) -> None:
    require_positive(field_name, value, allow_zero=allow_zero)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(field_name, value, "is not a whole number")
