"""The Slurm script, run by a shell where Slurm's commands are recorders."""

import os
import subprocess
from dataclasses import replace

import pytest

from tests.reports.dialects.jobs import DENSE
from tests.samples import CLUSTER, job_of
from trainscout.reports.launch.directory import SLURM, launch_texts, launches, slurm_script
from trainscout.simulators.predictor.question.recipe import Recipe

# Every framework can run it.
JOB = replace(
    job_of(Recipe(zero_stage=3, overlap_grad_reduce=True)),
    model=DENSE,
    cluster=replace(CLUSTER, num_nodes=3),
)


@pytest.fixture
def slurm(tmp_path):
    """A directory with the launch files, and commands that stand for Slurm's and torchrun."""
    found = launches(JOB)
    for name, text in launch_texts(JOB, found).items():
        (tmp_path / name).write_text(text)
    commands = tmp_path / "bin"
    commands.mkdir()
    scripts = {
        "scontrol": 'if [[ "$1" == show ]]; then printf "node%s\\n" 7 8 9; else echo "$@"; fi',
        # One task a node, as --ntasks-per-node=1 has it.
        "srun": (
            'while [[ "$1" == --* ]]; do shift; done\n'
            'for node in 0 1 2; do SLURM_NODEID="$node" "$@" || exit "$?"; done'
        ),
        "torchrun": 'echo "torchrun $* CHECKPOINTS=$CHECKPOINTS"; exit "${FAILS:-0}"',
    }
    for name, body in scripts.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (commands / name).chmod(0o755)

    def run(*arguments, **variables):
        environment = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "123456",
            "SLURM_JOB_NODELIST": "node[7-9]",
            **variables,
        }
        return subprocess.run(
            ["bash", SLURM, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


def test_every_node_starts_its_rank_and_meets_the_first(slurm, tmp_path):
    done = slurm()
    assert done.returncode == 0, done.stderr
    starts = done.stdout.splitlines()
    assert len(starts) == 3
    for node, start in enumerate(starts):
        assert f"--nnodes 3 --nproc-per-node 8 --node-rank {node} " in start
        assert "--master-addr node7 --master-port 23456 " in start
        assert "pretrain_gpt.py" in start
        assert f"--load {tmp_path}/checkpoints/megatron_lm " in start


@pytest.mark.parametrize("name", ["megatron_bridge", "deepspeed", "torchtitan"])
def test_it_runs_the_script_it_is_told(slurm, tmp_path, name):
    done = slurm(f"{name}.sh")
    assert done.returncode == 0, done.stderr
    assert f"CHECKPOINTS={tmp_path}/checkpoints/{name}" in done.stdout


def test_a_failed_run_goes_back_to_the_queue_a_few_times(slurm):
    done = slurm(FAILS="7")
    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "requeue 123456"
    assert "requeue" not in slurm(FAILS="7", SLURM_RESTART_COUNT="3").stdout
    assert "requeue" not in slurm().stdout


def test_it_asks_for_the_nodes_of_the_cluster():
    text = slurm_script(JOB, "megatron_lm.sh")
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=3" in directives
    assert "#SBATCH --gpus-per-node=8" in directives
    assert "#SBATCH --ntasks-per-node=1" in directives
    # Slurm stops reading directives at the first other line.
    assert text.splitlines()[1 : 1 + len(directives)] == directives
