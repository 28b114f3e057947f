"""Commands that are shown but not run are ones the programs accept; so are the help's examples."""

from __future__ import annotations

import argparse
import itertools
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from tests.docs.blocks import PROGRAMS, ROOT, SHELL, blocks, commands_of, pages
from trainscout.cli import COMMANDS, main, nested
from trainscout.commands.arguments import as_settings
from trainscout.commands.capacity_plan import build_capacity
from trainscout.commands.explanation_plan import build_explanation
from trainscout.commands.hydra_setup import prepare_hydra
from trainscout.commands.search_plan import build_plan, check_plan
from trainscout.completion import SETTINGS
from trainscout.conf.build import build_question, build_recipe
from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.registry import EXECUTORS
from trainscout.simulators.predictor.question.validity import check_job

TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
"""


def examples_of_help() -> list[tuple[str, list[str]]]:
    """Commands that the commands' own --help shows."""
    found = []
    for file in sorted((ROOT / "conf").glob("*.yaml")):
        text = re.sub(r"\\\n\s*", " ", file.read_text("utf-8"))
        for shown in re.findall(r"^ +(trainscout [^|\n]*)", text, re.MULTILINE):
            found += [(file.name, words) for words in commands_of(shown)]
    return found


def inline_commands() -> list[tuple[str, list[str]]]:
    """Commands in running text and tables: `trainscout ...`, `python ...`."""
    found = []
    for page in pages():
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
        for shown in re.findall(r"`((?:trainscout|python) [^`]+)`", text):
            found += [(page, words) for words in commands_of(shown) if len(words) > 2]
    return found


NOT_RUN = [
    (str(block), command)
    for page in pages()
    for block in blocks(page)
    if block.kind == SHELL and block.not_run
    for command in block.commands
]
SHOWN = [*NOT_RUN, *examples_of_help(), *inline_commands()]


def of(program: str) -> list[list[str]]:
    """Arguments of each shown command of ``program``, once, unless they are of the reader's."""
    found: dict[tuple[str, ...], None] = {}
    for _, words in SHOWN:
        if words[:2] in (["trainscout", program], ["python", f"{program}.py"]):
            arguments = tuple(words[2:])
            elided = "..." in arguments or any(word.startswith("<") for word in arguments)
            if not elided and "--help" not in arguments and "--config-dir" not in arguments:
                found[arguments] = None
    return [list(arguments) for arguments in found]


@pytest.fixture(scope="module", autouse=True)
def hydra():
    prepare_hydra()
    with initialize_config_module("conf", version_base="1.3"):
        yield


def jobs(arguments: list[str]) -> list[list[str]]:
    """The override lists of a command: one, or every combination of a ``-m`` sweep."""
    settings = [argument for argument in arguments if not argument.startswith("-")]
    if "-m" not in arguments:
        return [settings]
    names, values = zip(*(setting.split("=", 1) for setting in settings), strict=True)
    combinations = itertools.product(*(value.split(",") for value in values))
    return [
        [f"{name}={value}" for name, value in zip(names, combination, strict=True)]
        for combination in combinations
    ]


def composed(config_name: str, arguments: list[str]):
    return compose(config_name, as_settings(config_name, arguments))


@pytest.mark.parametrize("arguments", of("optimize"), ids=" ".join)
def test_a_search_could_start(arguments):
    for executor, entry in EXECUTORS.items():
        package = entry.package
        if f"executor={executor}" in arguments and package and not find_spec(package):
            pytest.skip(f"needs {package}")
    for package in ("megatron", "transformer_engine") if "verify=traced" in arguments else ():
        if not find_spec(package):
            pytest.skip(f"needs {package}")
    if "space=large" in arguments and "search=exact" in arguments:
        # To be ready to prove it is to have bounded all of it, for a minute.
        composed("config", arguments)
        return
    # To list a large space takes a second; that it can be is no matter of the command.
    named = any(word.split(".")[0].split("=")[0] in ("space", "framework") for word in arguments)
    small = [] if named else ["space=maya_table3"]
    plans = [build_plan(composed("config", [*each, *small])) for each in jobs(arguments)]
    # Of what a sweep combines, one.
    check_plan(plans[-1], None)


@pytest.mark.parametrize("arguments", of("simulate"), ids=" ".join)
def test_a_recipe_could_be_launched(arguments):
    config = composed("simulate", arguments)
    check_job(build_question(config).job(build_recipe(config.recipe)))


@pytest.mark.parametrize("arguments", of("plan"), ids=" ".join)
def test_a_study_could_start(arguments):
    if any(argument.startswith("schedule=") for argument in arguments):
        pytest.importorskip("apscheduler")
    assert build_capacity(composed("plan", arguments)).cells


@pytest.mark.parametrize("arguments", of("explain"), ids=" ".join)
def test_a_comparison_could_start(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What the reader launches today, and declares.
    for name, text in files():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    Path("llama3_8b.toml").write_text(TORCHTITAN, encoding="utf-8")
    plan = build_explanation(composed("explain", arguments))
    assert plan.first or not any(argument.startswith("a.") for argument in arguments)


def files() -> list[tuple[str, str]]:
    """Files that pages tell the reader to have."""
    shown = [block for page in pages() for block in blocks(page)]
    return [(block.file, block.text) for block in shown if block.file]


class AcceptedError(BaseException):
    """Raised in place of a command's work, once its arguments have been read."""


def entries(shown: list[tuple[str, list[str]]]) -> list[list[str]]:
    """Words of each ``trainscout`` that is shown, once, without what is elided; settings aside."""
    found: dict[tuple[str, ...], None] = {}
    for _, words in shown:
        if words[0] == "trainscout" and words[1] not in (*SETTINGS, "moe"):
            found[tuple(word for word in words[1:] if word != "...")] = None
    return [list(words) for words in found]


def modules() -> list[str]:
    """Module of each ``python -m`` that is shown, once."""
    named = [words[2] for _, words in SHOWN if words[:2] == ["python", "-m"]]
    return [module for module in dict.fromkeys(named) if module not in ("pytest", "venv")]


WITH_ARGUMENTS = [words for words in entries(NOT_RUN) if len(words) > 2]


@pytest.mark.parametrize("words", WITH_ARGUMENTS, ids=" ".join)
def test_a_command_accepts_its_arguments(words, monkeypatch, tmp_path):
    parse = argparse.ArgumentParser.parse_known_args

    def parse_only(parser, *given, **named):
        read, _ = parse(parser, *given, **named)
        if getattr(read, "cluster", None):
            load_catalogue().machines(read.cluster, getattr(read, "gpu", None))
        assert getattr(read, "gpu", None) in (None, *load_catalogue().gpus)
        raise AcceptedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_only)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AcceptedError):
        main(words)


def test_examples_that_are_shown_exist_and_know_their_options():
    shown = [each for page in pages() for block in blocks(page) for each in block.commands]
    scripts = set()
    for words in shown:
        for place, word in enumerate(words):
            if word.startswith("examples/") and word.endswith(".py"):
                scripts.add(word)
                source = (ROOT / word).read_text("utf-8")
                options = [each for each in words[place + 1 :] if each.startswith("--")]
                assert all(f'"{each}"' in source for each in options), words
    assert len(scripts) >= 6


def test_commands_that_are_named_exist():
    for words in entries(SHOWN):
        named = words[0] in COMMANDS and (not nested(words[0]) or " ".join(words[:2]) in COMMANDS)
        assert named or words[0] == "COMMAND" or words[0].startswith("--"), words


def test_modules_that_are_named_exist():
    for module in modules():
        assert find_spec(module), module


def test_extras_that_are_installed_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        for extras in re.findall(r"pip install (?:-e )?'?\.\[([\w,]+)\]", text):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), page


def test_every_program_is_known():
    """A command that starts with something else would be neither run nor checked."""
    for place, words in NOT_RUN:
        assert words[0] in (*PROGRAMS, ".", "pytest"), place


def test_no_command_hides_in_another_fence():
    """Output stands in a fence of its own, so that no command is taken for it."""
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        shell = "".join(block.text for block in blocks(page) if block.kind == SHELL)
        for line in re.findall(
            r"^(?:\$ )?((?:python3?|trainscout) (?:-m )?[\w./]+.*)$", text, re.MULTILINE
        ):
            assert line in shell, f"{page}: {line}"


def test_what_is_not_run_says_why():
    reasons = [block.not_run for page in pages() for block in blocks(page) if block.not_run]
    assert all(len(reason.split()) >= 1 for reason in reasons)
    assert len(of("optimize")) >= 10
    assert len(of("simulate")) >= 4
    assert len(WITH_ARGUMENTS) >= 12
