"""``trainscout`` works in folders whose files are named as its own packages are."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT, environment

PACKAGES = ("conf", "optimizer", "planning", "pruning", "reports", "simulators", "tests")
QUESTION = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64", "verbosity=quiet"]
SEARCH = ["search=random", "search.n_trials=8", "tracking=none", "hydra.run.dir=found"]
SCRIPT = """
import conf.mine
import optimizer
import reports

print("own modules", conf.mine.NAME, optimizer.NAME, reports.NAME)
import planning
"""


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
    """Modules, packages and folders of the user's, none of which may be imported by ours."""
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    for name in ("reports", "simulators"):
        (tmp_path / f"{name}.py").unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    return tmp_path


def run(command, *arguments, cwd, **variables):
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def from_clone():
    """As the scripts of a clone do: it is on this process's path, and on no child's."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from trainscout.cli import main; "
    return [sys.executable, "-c", f"{start}sys.exit(main(sys.argv[1:]))"]


def test_the_installed_command_runs(folder):
    program = Path(sys.executable).with_name("trainscout")
    if not program.exists():
        pytest.skip("the command is not installed")
    done = run([str(program)], "simulate", *QUESTION, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "gpt13b on a800_8" in done.stdout


def test_a_search_runs_as_a_module_and_in_workers(folder):
    settings = [*QUESTION, *SEARCH, "executor=loky", "executor.n_jobs=2"]
    module = [sys.executable, "-m", "trainscout"]
    done = run(module, "optimize", *settings, cwd=folder, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "gpt13b on a800_8" in done.stdout
    assert (folder / "found" / "report.html").exists()


def test_a_clone_runs_from_any_folder(folder):
    done = run([sys.executable, str(ROOT / "simulate.py")], *QUESTION, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_script_finds_its_own_modules_and_not_ours(tmp_path):
    pytest.importorskip("torch")
    for name in ("conf/mine.py", "optimizer.py", "reports/__init__.py"):
        path = tmp_path / "script" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"NAME = {name!r}\n")
    (tmp_path / "script" / "train.py").write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    options = ["--world-size", "8", "--no-check", "--trace", "t.gz", "--", "../script/train.py"]
    done = run(from_clone(), "run", *options, cwd=tmp_path / "elsewhere", PYTHONPATH="")
    assert "own modules conf/mine.py optimizer.py reports/__init__.py" in done.stdout
    # Nor do those of the clone beside the package stand in for a module that is missing.
    assert done.returncode == 1
    assert "No module named 'planning'" in done.stderr
