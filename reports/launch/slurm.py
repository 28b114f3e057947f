"""A Slurm batch script that runs any of the launch scripts on the job's nodes."""

from __future__ import annotations

from trainscout.reports.launch.shell import comment, title_lines
from trainscout.reports.launch.source import template
from trainscout.simulators.predictor.question.job import Job

NAME = "slurm.sbatch"


def slurm_script(job: Job, script: str) -> str:
    """A batch script; ``script`` is the launch script it runs unless it is told another.

    One task a node starts torchrun there. A run that fails is put back in the queue, where it
    goes on from its last checkpoint, MAX_RESTARTS times (3).
    """
    cluster = job.cluster
    header = [
        *title_lines(job),
        f"From its directory: sbatch {NAME} [{script}]",
        "Add what your site asks for: --account, --partition, --time, a container.",
    ]
    directives = [
        f"--job-name={_job_name(job)}",
        f"--nodes={cluster.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={cluster.gpus_per_node}",
        "--exclusive",
        "--mem=0",
        "--requeue",
        "--open-mode=append",
    ]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {directive}" for directive in directives),
            *comment(header),
            template("slurm").format(script=script),
        ]
    )


def _job_name(job: Job) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in job.model.name)
