"""Search backends and kinds of workers by name: one entry each.

What stands here can be checked without importing a backend; it is imported when it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

_HERE = "trainscout.optimizer"


@dataclass(frozen=True)
class SamplerEntry:
    """A search backend: ``module:builder`` below ``samplers``, called with a ``SearchSpec``.

    None: others, one after the other (``optimizer.legs``). ``package``: what it needs beyond every
    installation (the extra is named as the backend). ``one_objective``: it cannot trade several
    off. ``complete``: it leaves no recipe out.
    """

    path: str | None
    package: str | None = None
    one_objective: bool = False
    complete: bool = False


@dataclass(frozen=True)
class ExecutorEntry:
    """Who simulates: ``module:class`` of workers below ``executors``, called with the options.

    None: this process. ``package`` as of samplers; ``settings``: options that only some have;
    ``local``: without an address it is this machine.
    """

    path: str | None
    package: str | None = None
    settings: tuple[str, ...] = ()
    local: bool = True


SAMPLERS = {
    "auto": SamplerEntry(None),
    "tpe": SamplerEntry("tpe:TpeSampler"),
    "gp": SamplerEntry("optuna:build_sampler", package="torch"),
    "nsga2": SamplerEntry("optuna:build_sampler"),
    "cmaes": SamplerEntry("optuna:build_sampler", one_objective=True),
    "cma": SamplerEntry("cma:CmaSampler", one_objective=True),
    "random": SamplerEntry("optuna:build_sampler"),
    "grid": SamplerEntry("grid:GridSampler", complete=True),
    "exact": SamplerEntry("exact:ExactSampler", complete=True),
}
EXECUTORS = {
    "loky": ExecutorEntry("loky:LokyWorkers"),
    "serial": ExecutorEntry(None),
    "dask": ExecutorEntry("dask:DaskWorkers", package="distributed", settings=("address",)),
    "ray": ExecutorEntry("ray:RayWorkers", package="ray", settings=("address",)),
    "slurm": ExecutorEntry(
        "slurm:SlurmWorkers", package="submitit", settings=("options",), local=False
    ),
}


def imported(room: str, path: str) -> Any:
    """What ``module:name`` of ``optimizer/<room>`` is."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"{_HERE}.{room}.{module}"), name)


def require_package(
    field: str, name: str, entries: Mapping[str, SamplerEntry] | Mapping[str, ExecutorEntry]
) -> None:
    """Refuse an entry whose package is missing."""
    package = entries[name].package
    if package is not None and importlib.util.find_spec(package) is None:
        others = ", ".join(each for each, entry in entries.items() if entry.package is None)
        problem = f"needs {package}, which is not installed"
        raise InputError(field, name, problem, f"pip install 'trainscout[{name}]', or {others}")
