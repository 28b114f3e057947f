"""The search's own settings; ``conf/search`` fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainscout.optimizer.registry import EXECUTORS, SAMPLERS, require_package
from trainscout.pruning import TACTICS, select_tactics
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
    require_whole,
)


@dataclass(frozen=True)
class SearchOptions:
    """How to search and when to stop."""

    sampler: str = "tpe"
    """What proposes recipes; ``auto``: by bounds with a proof (``exact``) where the simulator has
    bounds, for ``proof_timeout_s`` at most, else or then by ``tpe``."""
    n_trials: int | None = 600
    """How many distinct launchable recipes are simulated or resolved by a tactic; None means no
    limit."""
    prove: bool = False
    """Once the sampler is done, bounds decide what else is simulated, until nothing left can be
    among the best."""
    proof_timeout_s: float | None = 120.0
    """How long ``auto`` tries to prove its answer before a sampler goes on from what is known
    (None: until it is proved)."""
    patience: int | None = 100
    """The search also ends once the five best have not changed for so many recipes that fit
    (None: never), but not before ``min_trials``."""
    min_trials: int = 500
    """``patience`` ends no search before so many recipes."""
    batch_size: int = 32
    """So many recipes are proposed at a time whatever the number of workers, so that the workers
    do not change the answer."""
    timeout_s: float | None = None
    """The search ends after so long (None: never)."""
    top_k: int = 10
    """How many best recipes are kept and protected from pruning."""
    pruning: tuple[str, ...] = tuple(TACTICS)
    """The tactics in use."""
    bounds: bool = True
    """Recipes that their bounds rule out are not simulated, where the simulator has bounds
    (``grid`` simulates all the same)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Goes to the sampler as it is."""
    warm_start: str | None = None
    """A file of recipes to try first (or a search's directory: its best ones), moved to the
    nearest that the space holds."""
    promote_to: str | None = None
    """Another simulator that looks at the ``top_k`` best again and ranks them anew."""
    storage: str | None = None
    """Where simulated recipes are kept: a journal file's path or a database URL (None: a journal
    file among the search's results)."""

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        require_choice("search.sampler", self.sampler, SAMPLERS)
        for name in ("n_trials", "patience", "batch_size", "top_k"):
            value = getattr(self, name)
            if value is None and name in ("n_trials", "patience"):
                continue
            require_whole(f"search.{name}", value)
        require_whole("search.min_trials", self.min_trials, 0)
        for name in ("timeout_s", "proof_timeout_s"):
            if getattr(self, name) is not None:
                require_positive(f"search.{name}", getattr(self, name))
        select_tactics(self.pruning)
        if self.storage is not None and not self.storage.strip():
            raise InputError("search.storage", self.storage, "is empty", "a path, a URL, or null")


@dataclass(frozen=True)
class ExecutorOptions:
    """Who simulates, and when a recipe is given up."""

    name: str = "loky"
    """``serial`` in this process, ``loky`` in processes of this machine, ``dask``, ``ray`` or
    ``slurm`` on a cluster."""
    n_jobs: int = -1
    """Workers; -1 means one per core."""
    trial_timeout_s: float | None = 600.0
    """A recipe that takes longer in a worker, or takes it down, runs once more and then counts as
    failed (None: waits for ever)."""
    pin_cores: bool = False
    """Each worker is kept on a core of its own."""
    address: str | None = None
    """A running Dask or Ray cluster (None: one on this machine)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Goes to submitit."""

    def check(self) -> None:
        """Refuse settings that mean nothing, and executors whose package is missing."""
        require_choice("executor.name", self.name, tuple(EXECUTORS))
        if self.n_jobs != -1:
            require_whole("executor.n_jobs", self.n_jobs)
        elif self.name == "slurm":
            raise InputError("executor.n_jobs", -1, "is no number of workers", "1 or more")
        if self.trial_timeout_s is not None:
            require_positive("executor.trial_timeout_s", self.trial_timeout_s)
        settings = EXECUTORS[self.name].settings
        if self.address is not None and "address" not in settings:
            raise InputError(
                "executor.address", self.address, f"means nothing to {self.name}", "null"
            )
        if self.options and "options" not in settings:
            problem = f"{self.name} takes no options"
            raise InputError("executor.options", dict(self.options), problem, "{}")
        require_package("executor.name", self.name, EXECUTORS)
