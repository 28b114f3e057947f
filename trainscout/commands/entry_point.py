"""How a command of Hydra's kind runs: once, or once for each job of a multirun."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from trainscout.commands.arguments import as_settings
from trainscout.commands.hydra_setup import prepare_hydra, refuse_empty
from trainscout.conf.input_errors import as_input_error
from trainscout.simulators.predictor.io.command_line import INTERRUPTED, OK, explain
from trainscout.simulators.predictor.question.errors import InputError

# Commands whose runs leave no directory.
_KEEP_NOTHING = ("simulate", "explain", "network_show")


def run_command(
    config_name: str, command: Callable[[DictConfig], int], arguments: Sequence[str]
) -> int:
    """Run ``command`` under Hydra, once or for each job of a multirun.

    ``command`` returns the exit code of its job; the first that is not 0 ends the process. An
    interrupted job ends a multirun.

    Raises:
        InputError: for what Hydra refuses.
    """
    prepare_hydra(command.__name__.replace("_", " "))
    arguments = as_settings(config_name, arguments)
    codes: list[int] = []

    @wraps(command)
    def job(config: DictConfig) -> None:
        # An exception that passes through Hydra is announced by it, and ends the other jobs.
        try:
            refuse_empty(config, arguments)
            codes.append(command(config))
        except Exception as error:
            codes.append(explain(as_input_error(error), debug=config.debug))
        if codes[-1] == INTERRUPTED:
            raise KeyboardInterrupt

    program = f"trainscout {command.__name__}"
    with _arguments([program, *arguments]):
        try:
            # An option or a setting of Hydra's is more than a setting of ours.
            asks_hydra = any(word.startswith("-") or "hydra" in word for word in arguments)
            if config_name in _KEEP_NOTHING and not asks_hydra:
                _run_once(config_name, job, arguments)
                return codes[0]
            main = hydra.main("pkg://trainscout.conf", config_name, version_base="1.3")
            main(job)()
        except HydraException as error:  # some are OSErrors, too
            raise as_input_error(error) from error
        except BrokenPipeError:  # whoever read the help has left
            raise
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # of a group's choice, whose file is looked for
                name = f"{Path(str(error.filename)).stem[:40]}..."
                problem = "is longer than the name of any file"
                raise InputError("command line", name, problem, "choices that ship") from error
            # Hydra makes a run's directory before it calls the program.
            problem = f"cannot be made: {error.strerror or error}"
            allowed = "a place that can be written"
            raise InputError("hydra.run.dir", error.filename, problem, allowed) from error
        except Exception as error:
            raise as_input_error(error) from error
    return next((code for code in codes if code != OK), OK)


def _run_once(
    config_name: str, job: Callable[[DictConfig], None], arguments: Sequence[str]
) -> None:
    """What Hydra does for one job that keeps nothing, but for its copies of all settings."""
    with hydra.initialize_config_module("trainscout.conf", version_base="1.3"):
        composer = GlobalHydra.instance().hydra
        assert composer is not None
        config = composer.compose_config(config_name, list(arguments), RunMode.RUN)
        HydraConfig.instance().cfg = config  # type: ignore[assignment]
        try:
            job(config)
        finally:
            HydraConfig.instance().cfg = None


@contextlib.contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    """Hydra looks for a command's arguments where a process has them."""
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before
