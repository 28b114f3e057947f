"""The ways to schedule a study that the documentation shows are ones their programs take."""

import re
import shlex
import subprocess

import pytest
import yaml
from hydra import compose, initialize_config_module

from tests.documented import ROOT, blocks
from trainscout.commands.capacity_plan import build_capacity
from trainscout.commands.schemas import register_commands
from trainscout.planning.schedule import check_schedule

PAGE = "docs/planning.md"
TEXT = (ROOT / PAGE).read_text("utf-8")
CRON = re.compile(r"^((?:\S+ ){5}) ?(cd .*)$", re.MULTILINE)
MONDAYS_AT_TWO = "0 2 * * 1"


def cron_lines() -> list[tuple[str, str]]:
    return [(when.strip(), command) for when, command in CRON.findall(TEXT)]


@pytest.fixture(scope="module", autouse=True)
def hydra():
    register_commands("plan")
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        yield


def check_command(command: str) -> None:
    """The shell can read it, and trainscout plan what is in it."""
    subprocess.run(["bash", "-n", "-c", command], check=True)
    words = shlex.split(command, comments=True)
    start = next(
        at
        for at, word in enumerate(words)
        if word.endswith("bin/trainscout") or word == "trainscout"
    )
    assert words[start + 1] == "plan"
    overrides = [word for word in words[start + 2 :] if "=" in word]
    assert overrides
    build_capacity(compose("plan", overrides))


def test_cron_and_slurm_lines_are_mondays_at_two():
    assert len(cron_lines()) == 2
    for when, command in cron_lines():
        check_schedule(when)
        assert when == MONDAYS_AT_TWO
        check_command(command)


def test_slurm_options_are_its_own():
    options = re.findall(r"^#SCRON --([a-z-]+)=\S+$", TEXT, re.MULTILINE)
    assert len(options) == len(re.findall(r"^#SCRON", TEXT, re.MULTILINE)) == 3
    # As in the manual of sbatch.
    assert set(options) <= {"cpus-per-task", "time", "output", "mem", "partition", "account"}


def test_the_github_workflow_is_one():
    workflow = next(
        read for block in blocks(PAGE, "yaml") if "jobs" in (read := yaml.safe_load(block))
    )
    triggers = workflow[True]  # "on" is a yes in YAML
    assert triggers["schedule"] == [{"cron": MONDAYS_AT_TWO}]
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z/-]+@v\d+", step["uses"])
        if "trainscout plan" in step.get("run", ""):
            check_command(step["run"])
    # What is kept is what is restored, and all of it is where the study writes.
    caches = [step["with"] for step in job["steps"] if "cache" in step.get("uses", "")]
    assert {cache["path"] for cache in caches} == {"plans"}
    assert len({cache["key"] for cache in caches}) == 1
