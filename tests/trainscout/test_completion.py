"""What shells are told to complete."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT, environment
from trainscout.cli import main
from trainscout.completion import SHELLS, candidates


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trainscout sim", ["simulate"]),
        ("trainscout kernels ", ["add", "export", "fit", "list", "validate"]),
        ("trainscout kernels fit --s", ["--serve", "--source"]),
        ("trainscout list m", ["models"]),
        ("trainscout moe num_l", ["num_layers=", "num_links="]),
        ("trainscout simulate --c", ["--cfg", "--config-dir"]),
        ("trainscout simulate model=gpt17", ["model=gpt175b"]),
        ("trainscout optimize model=gpt13b search=ex", ["search=exact"]),
        ("trainscout simulate recipe.tp", ["recipe.tp=", "recipe.tp_comm_overlap="]),
        ("trainscout validate ", []),
        ("trainscout nosuch ", []),
        ("trainscout kernels nosuch ", []),
        ("trainscout run -- train.py --", []),
    ],
)
def test_what_may_stand_at_the_end_of_a_line(line, words):
    assert candidates(line) == words


def test_settings_of_every_group_are_offered():
    found = candidates("trainscout plan ")
    assert {"sweep=", "sweep.", "schedule=", "search="} <= set(found)
    assert not any(word.startswith("hydra") for word in found)
    assert "hydra.run." in candidates("trainscout plan hydra.ru")


@pytest.fixture(name="bash")
def fixture_bash(tmp_path):
    """Runs bash with this ``trainscout`` on its PATH."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    program = tmp_path / "bin" / "trainscout"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trainscout "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])

    def run(text):
        return subprocess.run(
            [bash, "--norc", "-euo", "pipefail", "-c", text],
            env={**environment(), "PATH": path, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize(
    ("line", "breaks", "reply"),
    [
        ("trainscout simulate model=gpt17", "$' =:'", "gpt175b"),
        ("trainscout simulate model=gpt17", "' '", "model=gpt175b"),
        ("trainscout trace co", "$' =:'", "collate"),
    ],
)
def test_bash_completes(line, breaks, reply, bash):
    done = bash(
        f'eval "$(trainscout completion bash)"; COMP_WORDBREAKS={breaks}\n'
        f'complete -p trainscout; COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}\n'
        '_trainscout 2>/dev/null || true; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    registered, *replies = done.stdout.splitlines()
    assert registered == "complete -o default -F _trainscout trainscout"
    assert replies == [reply], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_what_the_shell_reads(shell, tmp_path, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "trainscout completion query" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        assert subprocess.run([shell, "-n", str(file)]).returncode == 0


def test_one_shell_at_a_time(capsys):
    assert main(["completion", "bash", "zsh"]) == 2
    assert "unrecognized arguments: zsh" in capsys.readouterr().err
