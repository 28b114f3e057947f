"""The table of commands, and the way to them."""

import importlib
import re
import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT
from trainscout.cli import COMMANDS, main, nested, top_level, version


@pytest.mark.parametrize(("name", "entry"), [(n, e) for n, (e, _) in COMMANDS.items() if e])
def test_every_entry_can_be_called(name, entry):
    module, _, function = entry.partition(":")
    assert callable(getattr(importlib.import_module(f"trainscout.{module}"), function or "main"))
    assert name in top_level() or name.split()[1] in nested(name.split()[0])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["optimise"], "did you mean 'optimize'?"),
        (["simulat", "model=gpt175b"], "did you mean 'simulate'?"),
        (["kernels", "validat", "t.csv"], "trainscout kernels=validat: is no command; did you"),
        (["model=gpt175b"], "(trainscout optimize model=gpt175b)"),
        (["predict", "model=gpt175b"], "did you mean 'simulate'?"),
        (["kernels fit"], "is no command"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest(typed, meant, capsys):
    assert main(typed) == 2
    stated = capsys.readouterr().err
    assert meant in stated
    assert len(stated.splitlines()) == 1


def test_the_page_has_every_command():
    page = (ROOT / "docs" / "command.md").read_text("utf-8")
    for name in top_level():
        rows = [line for line in page.splitlines() if re.match(rf"\|.*`{name}`.*\|.*\|", line)]
        assert rows, f"docs/command.md has no row for {name}"
        assert all(f"`{each}`" in rows[0] for each in nested(name)), rows[0]


@pytest.mark.parametrize("words", [[], ["kernels"], ["trace"]])
def test_without_a_command_there_is_help_and_exit_code_2(words, capsys):
    assert main(words) == 2
    shown = capsys.readouterr().out
    names = nested(words[0]) if words else top_level()
    assert set(names) <= set(re.findall(r"\w+", shown))
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    "words", [[], ["simulate"], ["simulate", "model=gpt175b"], ["kernels", "fit"]]
)
def test_the_version_is_ours(words, capsys):
    assert main([*words, "--version"]) == 0
    assert capsys.readouterr().out == f"trainscout {version()}\n"


def test_a_scripts_arguments_are_its_own(capsys):
    assert main(["run", "--world-size", "8", "--", "nowhere.py", "--version"]) == 2
    assert "nowhere.py: is no file" in capsys.readouterr().err


def test_hydras_flags_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "recipe.tp=2", "--cfg", "job", "--package", "recipe"]) == 0
    assert "tp: 2\n" in capsys.readouterr().out
    assert main(["simulate", "--hydra-help"]) == 0
    assert 'eval "$(trainscout simulate -sc install=bash)"' in capsys.readouterr().out
    model = tmp_path / "model" / "ours.yaml"
    model.parent.mkdir()
    model.write_text("defaults: [gpt13b, _self_]\nname: ours\n")
    own = ["--config-dir", str(tmp_path), "model=ours"]
    assert main(["simulate", *own, "cluster=a800_8", "verbosity=quiet"]) == 0
    assert "ours on a800_8" in capsys.readouterr().out


def test_two_commands_in_one_process_do_not_know_of_each_other(capsys):
    assert main(["simulate", "nosuch=1"]) == 2
    assert main(["simulate", "model=gpt13b", "cluster=a800_8", "verbosity=quiet"]) == 0
    assert main(["explain", "model=gpt13b", "cluster=a800_8", "verbosity=quiet"]) == 0
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("optimise", 2)])
def test_a_process_ends_with_its_code_when_all_has_happened(word, code):
    program = (
        "import atexit; from trainscout.cli import run; atexit.register(print, 'last'); run()"
    )
    ended = subprocess.run([sys.executable, "-c", program, word], capture_output=True, cwd=ROOT)
    assert ended.returncode == code
    assert ended.stdout.decode().splitlines()[-1] == "last"


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_process_without_a_standard_stream_ends_as_any_other(closed):
    command = f"'{sys.executable}' -m trainscout list models {closed}"
    assert subprocess.run(command, shell=True, capture_output=True, cwd=ROOT).returncode == 0
