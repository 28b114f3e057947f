"""Wrong input is refused before anything is written.

Hydra creates a run's directory before it calls the program. It calls its callbacks before
that, once for a single run and once for a whole multirun.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from trainscout.commands.hydra_setup import STORE, refuse_empty
from trainscout.commands.search_plan import build_plan, check_plan
from trainscout.conf.input_errors import as_input_error
from trainscout.reports.files import TOP_RECIPES, TRIALS
from trainscout.simulators.predictor.io.command_line import explain
from trainscout.simulators.predictor.question.errors import InputError


class CheckFirst(Callback):
    """Ends the process with exit code 2 when a job of the run cannot be run."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        with refusing(config):
            directory = Path(config.hydra.run.dir)
            plan = build_plan(config)
            if plan.options.storage is not None:
                _check_directory(directory, resume=config.resume or config.join)
                check_plan(plan, plan.options.storage)
            else:
                chosen = OmegaConf.is_interpolation(config.hydra.run, "dir")
                among = directory.parent if chosen else directory
                _check_directory(directory, resume=config.resume)
                if config.resume and not (directory / STORE).exists():
                    problem = f"there is no search in {among}"
                    earlier = "the model and cluster of an earlier search"
                    allowed = f"{earlier}, or hydra.run.dir=<its directory>"
                    raise InputError("resume", "true", problem, allowed)
                check_plan(plan, str(directory / STORE) if config.resume else None)
            if not config.resume or plan.options.storage is not None:
                _reserve(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with refusing(config):
            check_writable("hydra.sweep.dir", Path(config.hydra.sweep.dir))
            for job in _jobs(config):
                plan = build_plan(job)
                if check_plan(plan, plan.options.storage):
                    raise KeyboardInterrupt


@contextlib.contextmanager
def refusing(config: DictConfig) -> Iterator[None]:
    """End the process with exit code 2 for what the body refuses."""
    try:
        refuse_empty(config, config.hydra.overrides.task)
        yield
    except Exception as error:
        # Hydra turns an Exception of a callback into a warning and goes on.
        raise SystemExit(explain(as_input_error(error), debug=config.debug)) from None


def _check_directory(directory: Path, *, resume: bool) -> None:
    check_writable("hydra.run.dir", directory)
    held = [name for name in (STORE, TOP_RECIPES, TRIALS) if (directory / name).exists()]
    if held and not resume:
        problem = f"already holds a search ({held[0]})"
        allowed = "another directory, or resume=true to go on with it"
        raise InputError("hydra.run.dir", directory, problem, allowed)


def _reserve(config: DictConfig) -> None:
    """Make the directory that a search is given by the clock; one that starts in the same second
    is given another."""
    while OmegaConf.is_interpolation(config.hydra.run, "dir"):
        directory = Path(config.hydra.run.dir)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(parents=True)
            config.hydra.run.dir = str(directory)


def check_writable(field: str, directory: Path) -> None:
    """Refuse a directory that could not be made or written in."""
    instead = f"{field}=FOLDER, or start from a folder that you may write in"
    existing = directory.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(field, directory, f"{existing} is not a directory", instead)
    try:
        # Permission bits do not tell everything (root, read-only and virtual file systems).
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        problem = f"{existing} cannot be written to: {error.strerror}"
        raise InputError(field, directory, problem, instead) from error


def _jobs(config: DictConfig) -> list[DictConfig]:
    """The configuration of every job of a multirun, as Hydra's own sweeper will expand it.

    Other sweepers choose the later jobs from what the earlier ones gave: their jobs are not
    known here.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    if not config.hydra.sweeper._target_.endswith(BasicSweeper.__name__):
        return []
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(
        [f"{name}={value}" for name, value in (config.hydra.sweeper.params or {}).items()]
        + list(config.hydra.overrides.task)
    )
    (batch,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return [loader.load_sweep_config(config, job) for job in batch]
