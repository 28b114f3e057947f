"""Every command shows how it is used, at once and without side effects."""

import ast
import json
import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT, environment
from trainscout.cli import COMMANDS, main

# Parts of other commands, pages written from the code, and the program itself.
INTERNAL = {
    "optimizer.tracking.serve",
    "simulators.virtual_cluster.emulation.cuda.system_tool",
    "simulators.virtual_cluster.emulation.launch.rank_process",
    "simulators.virtual_cluster.emulation.launch.whole_command",
    "simulators.virtual_cluster.live.rank_process",
    "simulators.virtual_cluster.traced.recorder",
    "simulators.virtual_cluster.trials.rank_server",
    "trainscout",
    "trainscout.reference",
}
TWO_SCREENS = 60
HEAVY = {"torch", "mlflow", "xgboost", "pandas", "optuna", "matplotlib", "plotly", "ray", "dask"}
ALL_HELP = """
import contextlib, io, json, sys
from trainscout.cli import COMMANDS, main
shown = {}
for name in COMMANDS:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = main([*name.split(), "--help"])
    shown[name] = code, text.getvalue()
print(json.dumps({"shown": shown, "loaded": list(sys.modules)}))
"""
FRONT = """
import json, sys
from trainscout.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, list(sys.modules)]))
"""


def run(program, *arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(cwd.iterdir())
    *shown, last = done.stdout.splitlines()
    return shown, json.loads(last)


@pytest.fixture(scope="module", name="helps")
def fixture_helps(tmp_path_factory):
    _, answer = run(ALL_HELP, cwd=tmp_path_factory.mktemp("empty"))
    return answer


def test_help_loads_nothing_heavy(helps):
    assert not HEAVY.intersection(helps["loaded"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_what_a_command_does_and_examples(command, helps):
    code, text = helps["shown"][command]
    assert code == 0
    told, _, rest = text.partition("xamples")
    assert len(told.split()) > 5
    examples = [line for line in rest.splitlines() if line.startswith("  ")]
    own = [line for line in examples if f"trainscout {command}" in line]
    family = not COMMANDS[command][0]
    assert len(own) >= 2 or family, text
    assert "python" not in rest.split("\n\n")[0]
    assert len(text.splitlines()) <= TWO_SCREENS
    if not family:
        assert "exit codes:" in text.lower()


def test_help_lists_what_can_be_chosen(helps):
    assert "gpt3_18b4" in helps["shown"]["optimize"][1]
    assert "sweep" in helps["shown"]["plan"][1].partition("Groups")[2].partition("Settings")[0]


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_the_front_is_light_and_fits_a_screen(asked, tmp_path):
    shown, (code, loaded) = run(FRONT, asked, cwd=tmp_path)
    assert code == 0
    assert not {"hydra", "omegaconf", "numpy", "yaml", "rich", *HEAVY}.intersection(loaded)
    assert len(shown) <= 30
    assert max(map(len, shown)) <= 100


def test_no_module_is_a_program_of_its_own():
    found = set()
    packages = ("conf", "optimizer", "planning", "pruning", "simulators", "trainscout")
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            body = ast.parse(path.read_text("utf-8")).body
            if any("__main__" in ast.unparse(each) for each in body if isinstance(each, ast.If)):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.add(name.removesuffix(".__main__"))
    assert found == INTERNAL


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_options_end_with_2_and_no_traceback(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--nosuch=1"]) == 2
    stated = capsys.readouterr().err
    assert stated
    assert "Traceback" not in stated
    assert not list(tmp_path.iterdir())
