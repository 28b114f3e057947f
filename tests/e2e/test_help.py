"""Every command of the project shows how it is used, at once and without side effects."""

import ast
import re
import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT, environment

SCRIPTS = ["optimize.py", "simulate.py", "plan.py", "explain.py"]
MODULES = [
    "trainscout.optimizer.tracking",
    "trainscout.simulators.laboratory.accuracy",
    "trainscout.simulators.laboratory.calibrate",
    "trainscout.simulators.laboratory.residuals",
    "trainscout.simulators.laboratory.validate",
    "trainscout.simulators.laboratory.collectives.fit",
    "trainscout.simulators.laboratory.collectives.validate",
    "trainscout.simulators.virtual_cluster.emulation",
    "trainscout.simulators.virtual_cluster.emulation run",
    "trainscout.simulators.virtual_cluster.emulation live",
    "trainscout.simulators.laboratory.interference.fit",
    "trainscout.simulators.laboratory.interference.measure",
    "trainscout.simulators.laboratory.kernels.fit",
    "trainscout.simulators.laboratory.kernels.measure",
    "trainscout.simulators.laboratory.kernels.validate",
    "trainscout.simulators.predictor.moe",
    "trainscout.simulators.laboratory.network.train",
    "trainscout.simulators.virtual_cluster.execution",
    "trainscout.simulators.virtual_cluster.traces",
]
# Not for users: parts of other commands, and pages written from the code.
INTERNAL = {
    "trainscout.reference",
    "trainscout.simulators.virtual_cluster.emulation.rank_process",
    "trainscout.simulators.virtual_cluster.emulation.set_up",
    "trainscout.simulators.virtual_cluster.live.rank_process",
    "trainscout.simulators.virtual_cluster.traced.rank_recorder",
    "trainscout.simulators.virtual_cluster.traced.recorder",
    "trainscout.simulators.virtual_cluster.traced.train_rank",
}
HEAVY = ("torch", "mlflow", "xgboost", "pandas", "optuna", "matplotlib", "plotly", "ray", "dask")


def run(*arguments, cwd, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        **options,
    )


def words(command):
    return [str(ROOT / command)] if command in SCRIPTS else ["-m", *command.split()]


@pytest.mark.parametrize("command", [*SCRIPTS, *MODULES])
def test_help_has_examples_and_exit_codes_and_loads_nothing_heavy(command, tmp_path):
    done = run("-X", "importtime", *words(command), "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    program = f"python {command}" if command in SCRIPTS else f"python -m {command}"
    examples = re.split(r"examples\b", done.stdout, maxsplit=1, flags=re.IGNORECASE)
    assert len(examples) == 2 or command == "trainscout.optimizer.tracking", done.stdout
    assert program in examples[-1]
    if command != "trainscout.simulators.virtual_cluster.emulation":
        assert "exit codes:" in done.stdout.lower()
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert not loaded.intersection(HEAVY)
    assert not list(tmp_path.iterdir())


def is_if(statement):
    return isinstance(statement, ast.If)


def test_no_command_is_left_out():
    found = set()
    for package in ("conf", "optimizer", "planning", "pruning", "reports", "simulators"):
        for path in (ROOT / package).rglob("*.py"):
            statements = ast.parse(path.read_text("utf-8")).body
            if any("__main__" in ast.unparse(each) for each in statements if is_if(each)):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.add(name.removesuffix(".__main__"))
    assert found == INTERNAL | {name.split()[0] for name in MODULES}


@pytest.mark.parametrize("command", [*SCRIPTS, *MODULES])
def test_wrong_options_end_with_2_and_no_traceback(command, tmp_path):
    wrong = (
        "nosuch=1"
        if command in SCRIPTS or command == "trainscout.simulators.predictor.moe"
        else "--nosuch=1"
    )
    done = run(*words(command), wrong, cwd=tmp_path)
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
