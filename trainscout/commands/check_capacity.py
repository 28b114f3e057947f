"""A capacity study that cannot be run is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from trainscout.commands.capacity_plan import build_capacity, check_cells
from trainscout.commands.check_first import check_writable, refusing
from trainscout.planning.lock import check_free
from trainscout.simulators.predictor.question.errors import InputError


class CheckCapacity(Callback):
    """Ends the process with exit code 2 when the study cannot be run."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        with refusing(config):
            directory = Path(config.hydra.run.dir)
            check_writable("hydra.run.dir", directory)
            plan = build_capacity(config)
            check_cells(plan.cells, plan.reliability, plan.settings)
            if plan.wait_s == 0:
                check_free(directory)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with refusing(config):
            problem = "means nothing to trainscout plan"
            raise InputError("command line", "-m", problem, "a study of several values")
