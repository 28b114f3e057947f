"""What a shell completes: ``trainscout completion bash``, ``zsh`` or ``fish`` prints its script.

The script asks ``trainscout completion query LINE`` at each TAB. Names of commands come from their
table, settings from Hydra (groups, their choices, fields and their values), options and other
choices from what a command's ``--help`` shows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from trainscout.cli import COMMANDS, nested, top_level
from trainscout.cli import main as run
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import show_text

SETTINGS = {
    "optimize": "config",
    "simulate": "simulate",
    "explain": "explain",
    "plan": "plan",
    "network show": "network_show",
}
"""Commands of Hydra's kind, and their file in ``conf/``."""
HYDRA_FLAGS = ("--cfg", "--config-dir", "--help", "--hydra-help", "--multirun", "--version")
QUERY = "query"

SHELLS = ("bash", "zsh", "fish")


def main(arguments: Sequence[str]) -> int:
    """Print a shell's script, or what may stand where a line ends."""
    parser = command_parser(
        "completion",
        "Print what makes a shell complete commands, settings, their values, and options.",
        'eval "$(trainscout completion bash)"        # also in ~/.bashrc\n'
        'eval "$(trainscout completion zsh)"         # also in ~/.zshrc\n'
        "trainscout completion fish | source         # also in ~/.config/fish/config.fish",
    )
    shells = "{" + ",".join(SHELLS) + "}"
    parser.add_argument("shell", metavar=shells, choices=[*SHELLS, QUERY])
    parser.add_argument("line", nargs="?", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.line and options.shell != QUERY:
        parser.error(f"unrecognized arguments: {options.line}")
    if options.shell == QUERY:
        show_text("".join(f"{word}\n" for word in candidates(options.line)))
    else:
        folder = Path(__file__).parent / "templates"
        show_text((folder / f"{options.shell}.txt").read_text("utf-8"))
    return OK


def candidates(line: str) -> list[str]:
    """Whole words that may stand where a line ends, sorted.

    Args:
        line: what has been typed up to the cursor, the program's name included.
    """
    words = line.split()[1:]
    word = "" if line[-1:].isspace() or not words else words.pop()
    if "--" in words:
        return []  # A script's own.
    name, names = "", top_level()
    while names and words:
        name, words = f"{name} {words[0]}".strip(), words[1:]
        names = nested(name)
    if not names:
        if name not in COMMANDS:
            return []
        if name in SETTINGS:
            names = list(HYDRA_FLAGS) if word.startswith("-") else _settings(name, words, word)
        else:
            names = _in_help(name, options=word.startswith("-"))
    return sorted(each for each in names if each.startswith(word))


def _settings(name: str, words: Sequence[str], word: str) -> list[str]:
    """What Hydra completes: ``group=choice``, ``group.field=value``."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    from trainscout.commands.hydra_setup import prepare_hydra

    prepare_hydra()
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        plugin = DefaultCompletionPlugin(GlobalHydra.instance().config_loader())
        found: list[str] = plugin._query(SETTINGS[name], " ".join([*words, word]))
    # Hydra's own settings are for who asks for them.
    return [each for each in found if word.startswith("h") or not each.startswith("hydra")]


def _in_help(name: str, *, options: bool) -> list[str]:
    """What a command's help shows: its options, or its settings (``moe``) and fixed choices."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        run([*name.split(), "--help"])
    text = shown.getvalue()
    if options:
        return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)))
    found = re.findall(r"^  (\w+=) ", text, re.MULTILINE)
    for choices in re.findall(r"^  \{([\w,]+)\}", text, re.MULTILINE):
        found += choices.split(",")
    return found
