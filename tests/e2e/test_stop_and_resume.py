import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.e2e.commands import SMALL, SMALLEST, command, environment, files_in, run
from tests.warm.session import run_python

# Too long to end by itself before the signal.
ENDLESS = [*SMALL[:3], "executor.n_jobs=2", "tracking=none", "search.patience=null"]
ENDLESS += ["search.bounds=false"]
ENDLESS += ["search=tpe", "search.n_trials=5000", "search.batch_size=16"]


def stop_after_first_progress(
    cwd, how: signal.Signals, times: int = 1
) -> tuple[int, str, str, int]:
    """Start a search and stop it; exit code, stdout, stderr and the recipes it reported."""
    process = subprocess.Popen(
        command("optimize.py", *ENDLESS),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    # As a terminal does: the signal goes to the workers too.
    for _ in range(times):
        os.killpg(process.pid, how)
        time.sleep(0.03)
    stdout, stderr = process.communicate(timeout=60)
    reported = re.match(r"(\d+)/\d+ recipes", line)
    assert reported is not None, line + stderr
    return process.returncode, stdout, line + stderr, int(reported[1])


def test_an_impatient_ctrl_c_prints_no_traceback(tmp_path):
    code, _, stderr, _ = stop_after_first_progress(tmp_path, signal.SIGINT, times=3)
    assert code == 130, stderr
    assert "Traceback" not in stderr


def run_directory(cwd):
    (directory,) = (cwd / "outputs" / "gpt13b-a800_8").iterdir()
    return directory


@pytest.mark.parametrize(
    "how",
    [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.deep)],
)
def test_a_stopped_search_shows_and_saves_what_there_is(tmp_path, how):
    """Ctrl-C; Slurm and Kubernetes; a terminal that is lost."""
    code, stdout, stderr, reported = stop_after_first_progress(tmp_path, how)
    assert code == 128 + how, stderr
    assert "interrupted" in stdout
    assert "Traceback" not in stderr
    directory = run_directory(tmp_path)
    rows = json.loads((directory / "top_recipes.json").read_text())
    assert rows or "No recipe fits" in stdout
    assert len((directory / "trials.csv").read_text().splitlines()) > reported


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    """A directory whose one search was killed outright, and the recipes it had reported."""
    cwd = tmp_path_factory.mktemp("killed")
    code, _, _, reported = stop_after_first_progress(cwd, signal.SIGKILL)
    assert code == -signal.SIGKILL
    return cwd, reported


@pytest.fixture
def killed(killed_once, tmp_path):
    cwd, reported = killed_once
    return shutil.copytree(cwd, tmp_path / "copy"), reported


def test_a_killed_search_goes_on_where_it_was(killed):
    cwd, reported = killed
    directory = run_directory(cwd)
    assert not (directory / "top_recipes.json").exists()
    arguments = [*ENDLESS, f"search.n_trials={reported + 16}", "resume=true"]
    arguments.append("verbosity=verbose")
    done = run("optimize.py", *arguments, cwd=cwd)
    assert run_directory(cwd) == directory
    resumed = re.search(r"(\d+) of them resumed", " ".join(done.stdout.split()))
    assert resumed is not None
    pruned = re.search(r"(\d+) pruned", done.stdout)
    # Every simulated recipe that was reported came from the store; pruned ones cost nothing.
    assert int(resumed[1]) + (int(pruned[1]) if pruned else 0) >= reported


def test_a_damaged_store_is_refused_and_left_alone(killed):
    cwd, _ = killed
    (store,) = cwd.glob("outputs/*/*/trials.journal")
    lines = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(b"".join([b"not a record\n", *lines[1:]]))
    before = files_in(cwd)
    done = run("optimize.py", *ENDLESS, "resume=true", cwd=cwd, code=2)
    assert str(store.relative_to(cwd)) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert files_in(cwd) == before


def test_a_full_disk_costs_no_answer(tmp_path):
    """Files that may not grow stand for a disk that is full when results are written."""
    limited = (
        "import sys\n"
        "import trainscout.reports.files as files\n"
        "def full(*_):\n"
        "    raise OSError(28, 'No space left on device', 'report.txt')\n"
        "files.write_whole = full\n"
        "import trainscout.commands.optimize as command\n"
        "command.write_search_page = full\n"
        "sys.argv[0] = 'optimize.py'\n"
        "from trainscout.cli import main\n"
        "sys.exit(main(['optimize', *sys.argv[1:]]))\n"
    )
    arguments = [*SMALLEST, "tracking=none", "search.n_trials=8", "launch.directory=null"]
    done = run_python("-c", limited, *arguments, cwd=tmp_path, environment=environment())
    assert done.returncode == 5, done.stderr
    assert "tp" in done.stdout
    stated = "error: not all results are written: report.txt: No space left on device\n"
    assert done.stderr.endswith(stated)


def test_another_question_is_not_resumed(killed):
    cwd, _ = killed
    before = files_in(cwd)
    done = run(
        "optimize.py", *ENDLESS, "resume=true", "training.global_batch_size=32", cwd=cwd, code=2
    )
    assert "another search" in done.stderr
    assert files_in(cwd) == before
