"""Searches of a toy space by the fake simulator, in this process unless told otherwise."""

from __future__ import annotations

from typing import Any

from tests.optimizer.fake_simulator import FAKE, SPACE, toy_question
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.trial import SearchResult

SERIAL = ExecutorOptions("serial", 1)
_OF_RUN = ("storage", "resume", "join", "on_progress")


def search(sampler: str = "tpe", *, objective: Any = "cost", **changes: Any) -> SearchResult:
    """``changes`` are of what is asked, of the options or of ``run_search``, by their names."""
    fields: dict[str, Any] = {"question": toy_question(), "space": SPACE}
    fields |= {"simulator": FAKE, "executor": SERIAL}
    settings = {"n_trials": 64, "patience": None, "min_trials": 0, "batch_size": 16}
    names = (objective,) if isinstance(objective, str) else objective
    of_run = {name: changes.pop(name) for name in _OF_RUN if name in changes}
    asked = {name: changes.pop(name) for name in (*fields, "seed") if name in changes}
    options = SearchOptions(sampler, **(settings | changes))
    return run_search(
        AskedSearch(objective=Objective(names), options=options, **(fields | asked)), **of_run
    )
