"""Built-in schedules, written as files of one's own."""

import csv
from pathlib import Path

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedule_file import KINDS
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order


def write_schedule(job: Job, path: Path) -> str:
    """The order of a job whose micro-batches all go one way; returns the file's name."""
    recipe = job.recipe
    (route,) = job.routes
    part = {place: number for number, place in enumerate(route)}
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        for stage in range(recipe.pp):
            order = stage_order(job.schedule, stage, recipe.pp, recipe.vpp, job.num_micro_batches)
            passes = order.T.tolist()
            rows.writerow(
                [f"{part[stage, chunk]}{KINDS[kind]}{micro}" for kind, chunk, micro in passes]
            )
    return str(path)
