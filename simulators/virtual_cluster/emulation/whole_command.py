"""Which Python program does a whole launch command start to train, and what does it find there?

Where one process is the rank from its beginning (``live``, ``tune``), the command runs up to the
first file or module that imports torch, and that is what the rank runs. Code among its arguments
(``python -c``), which asks what a node has, runs on the virtual GPUs to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from trainscout.simulators.predictor.io.own_process import own_process, packed
from trainscout.simulators.predictor.question.errors import InputError

from .programs import STARTUP, Programs, put_first, run_main, set_environment, waits_for_program
from .rank_process import RANK_PROCESS, RankOptions, RanksOptions

_MODULE = "trainscout.simulators.virtual_cluster.emulation.whole_command"


def find_training(options: RankOptions) -> RankOptions:
    """The rank whose script is what the command of ``options`` starts to train; that one's
    environment and folder become this process's.

    Raises:
        InputError: for a command that starts neither.
    """
    if not waits_for_program(options.script):
        return options
    world_size, node = options.world_size, options.local_world_size
    set_environment(world_size, options.rank, node)
    put_first("PYTHONPATH", STARTUP)
    programs = Programs(child=False)
    code = replace(options, trace=Path(os.devnull), check=False)
    _, *command = own_process(_MODULE, packed(RanksOptions((code,))), str(programs.claim))
    programs.follow(command, options.rank % min(node, world_size))
    # However it ends: what comes after training may miss what that would have left.
    with contextlib.suppress(SystemExit):
        run_main(options.script)
    try:
        found = json.loads(programs.claim.read_text())
        words, environment, folder = found
    except (OSError, ValueError, TypeError):
        problem = "starts no file or module that imports torch"
        raise InputError("script", options.script[0], problem, "train.py, train.sh") from None
    programs.claim.unlink()
    os.environ.clear()
    os.environ.update(environment)
    programs.forget()
    os.chdir(folder)
    return replace(options, script=tuple(words))


def main(arguments: list[str]) -> None:
    """What a program that imports torch turns into: its words, environment and folder are written,
    unless it is code."""
    options, claim, *began = arguments
    _, _, *words = began
    if words[0] == "-c":
        os.execv(sys.executable, own_process(RANK_PROCESS, options, *began))
    found = Path(f"{claim}.{os.getpid()}")
    found.write_text(json.dumps([words, dict(os.environ), os.getcwd()]))
    found.replace(claim)


if __name__ == "__main__":
    main(sys.argv[1:])
