"""The ways to schedule a study that the documentation shows are ones their programs take."""

import re
import shlex
import shutil
import subprocess
from datetime import datetime

import pytest
import yaml
from hydra import compose, initialize_config_module

from tests.documented import ROOT, blocks
from trainscout.commands.capacity_plan import build_capacity
from trainscout.commands.schemas import register_commands
from trainscout.planning.schedule import check_schedule, keep

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


def next_time(schedule: str) -> datetime:
    found: list[datetime] = []

    def stop(_: float) -> None:
        raise StopIteration

    with pytest.raises(StopIteration):
        keep(schedule, lambda: False, found.append, stop)
    return found[0]


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


def units() -> dict[str, str]:
    service, timer = blocks(PAGE, "ini")
    return {"capacity.service": service, "capacity.timer": timer}


def test_the_service_runs_a_study():
    (command,) = re.findall(r"^ExecStart=(.*)$", units()["capacity.service"], re.MULTILINE)
    check_command(command)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
class TestSystemd:
    def test_the_units_are_valid(self, tmp_path):
        directory = str(tmp_path)
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/trainscout").symlink_to("/bin/true")
        for name, text in units().items():
            assert name == "capacity.timer" or "/srv/trainscout" in text
            (tmp_path / name).write_text(text.replace("/srv/trainscout", directory))
        paths = [str(tmp_path / name) for name in units()]
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *paths],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "SYSTEMD_LOG_LEVEL": "warning"},
        )
        stated = [line for line in done.stderr.splitlines() if "capacity" in line]
        assert stated == []

    def test_a_wrong_unit_would_be_found(self, tmp_path):
        wrong = units()["capacity.service"].replace("Type=oneshot", "Type=onceonly")
        (tmp_path / "capacity.service").write_text(wrong)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / "capacity.service")],
            capture_output=True,
            text=True,
        )
        assert "onceonly" in done.stderr

    def test_the_timer_is_when_cron_is(self):
        (calendar,) = re.findall(r"^OnCalendar=(.*)$", units()["capacity.timer"], re.MULTILINE)
        done = subprocess.run(
            ["systemd-analyze", "calendar", calendar], capture_output=True, text=True, check=True
        )
        (shown,) = re.findall(r"Next elapse: \w+ ([\d-]+ [\d:]+)", done.stdout)
        assert shown == f"{next_time(MONDAYS_AT_TWO):%Y-%m-%d %H:%M:%S}"
