"""Predict one training recipe: ``python simulate.py --help``."""

from __future__ import annotations

import json
import sys

from omegaconf import DictConfig

from conf.build import build_declared, build_recipe
from conf.commands import refuse_unknown
from conf.door import OK, run_command
from reports.tables import prediction_report, show
from simulators.base import get_simulator
from simulators.errors import require_choice
from simulators.validity import check_job


def simulate(config: DictConfig) -> int:
    refuse_unknown(config, "simulation_schema")
    require_choice("format", config.format, ("json", "table"))
    simulator = get_simulator(config.simulator.name)
    job = build_declared(config).job(build_recipe(config.recipe))
    check_job(job)
    prediction = simulator.simulate(job)
    if config.format == "json":
        print(json.dumps(prediction.to_dict(), indent=2, allow_nan=False))
    else:
        show(prediction_report(prediction, job))
    return OK


if __name__ == "__main__":
    sys.exit(run_command("simulate", simulate))
