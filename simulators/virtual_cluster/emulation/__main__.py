"""``trainscout``: run training code on virtual GPUs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from trainscout.simulators.predictor.io.command_line import exit_code
from trainscout.simulators.predictor.question.errors import InputError

# Each subcommand is its own program, loaded when it is asked for.
COMMANDS = {
    "run": (
        "trainscout.simulators.virtual_cluster.emulation.launcher",
        "trace one or several ranks of a job",
    ),
    "live": (
        "trainscout.simulators.virtual_cluster.live.launcher",
        "run ranks against a simulated cluster's clock",
    ),
}


def usage() -> str:
    """What there is."""
    lines = [
        "usage: trainscout COMMAND ...",
        "",
        "commands:",
    ]
    lines += [f"  {name:6} {meaning}" for name, (_, meaning) in COMMANDS.items()]
    lines += ["", "examples:"]
    lines += ["  trainscout run --world-size 16 -- train.py --steps 2"]
    lines += ["  trainscout live --world-size 16 --cluster h100_64 -- train.py"]
    lines += [
        "",
        "trainscout COMMAND --help tells a command's options and exit codes.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Dispatch to a subcommand; its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        print(f"command={command}: is not known\n\n{usage()}", file=sys.stderr)
        return 2
    if sys.platform != "linux":
        print(
            InputError("platform", sys.platform, "has no virtual GPUs", "linux"), file=sys.stderr
        )
        return 2
    module = importlib.import_module(COMMANDS[command][0])
    return int(module.main(list(rest)))


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
