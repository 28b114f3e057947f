"""Every command for virtual GPUs that the documentation shows is one the programs accept."""

import re
import shlex
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.virtual_cluster.emulation import launcher as emulation
from trainscout.simulators.virtual_cluster.execution import command as ranks
from trainscout.simulators.virtual_cluster.live import launcher as live

PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md")))]
PROGRAMS = {
    "run": emulation.parser,
    "live": live.parser,
    "trace replay": ranks._parser,
}


def documented() -> list[tuple[str, str, list[str]]]:
    """Page, program and arguments of each command in a block of its own."""
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", Path(ROOT, page).read_text("utf-8"))
        for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
            for program in PROGRAMS:
                for shown in re.findall(rf"^trainscout {program} (.*)$", block, re.MULTILINE):
                    found.append((page, program, shlex.split(shown, comments=True)))
    return found


COMMANDS = documented()


@pytest.mark.parametrize(("page", "program", "arguments"), COMMANDS, ids=str)
def test_a_documented_command_is_accepted(page, program, arguments):
    given = PROGRAMS[program]().parse_args(arguments)
    if getattr(given, "cluster", None):
        load_catalogue().machines(given.cluster, given.gpu)
    if getattr(given, "gpu", None):
        assert given.gpu in load_catalogue().gpus


EXAMPLES = [
    (page, arguments[place], arguments[place + 1 :])
    for page, _, arguments in COMMANDS
    for place, argument in enumerate(arguments)
    if argument.startswith("examples/")
]


@pytest.mark.parametrize(("page", "script", "arguments"), EXAMPLES, ids=str)
def test_documented_examples_exist_and_know_their_options(page, script, arguments):
    source = Path(ROOT, script).read_text("utf-8")
    for argument in arguments:
        if argument.startswith("--"):
            assert f'"{argument}"' in source


def test_each_framework_is_shown():
    scripts = {script for _, script, _ in EXAMPLES}
    assert len(scripts) >= 6
    assert any("torchtitan.train" in arguments for _, _, arguments in COMMANDS)
