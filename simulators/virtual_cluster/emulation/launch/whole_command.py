"""Which Python program does a whole launch command start to train, and what does it find there?

Where one process is the rank from its beginning (``live``, ``tune``), the command runs up to a
file or module that imports torch, which the rank's process runs in its place. One that ends well
and has not used the device has prepared what the next one needs: the command goes on. Code among
its arguments (``python -c``), which asks what a node has, runs on the virtual GPUs to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainscout.simulators.predictor.io.own_process import own_process, packed
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder

from .prepared import ended_with, fork_rank
from .programs import (
    SETTINGS,
    STARTUP,
    Programs,
    put_first,
    set_environment,
    start_program,
    waits_for_program,
)
from .rank_process import RANK_PROCESS, RankOptions, RanksOptions

_MODULE = "trainscout.simulators.virtual_cluster.emulation.launch.whole_command"
# The exit code of a rank's process that only prepared: none of a script's.
_PREPARED = 77
_LOOK_S = 0.02


Run = Callable[[RankOptions], int]
End = Callable[[RankOptions, int], int]


def run_training(options: RankOptions, recorder: Recorder, run: Run, end: End) -> int:
    """Be the rank whose script is what the command of ``options`` starts to train.

    Args:
        recorder: the rank's, which tells whether a program used the device.
        run: runs the script of such options; its exit code.
        end: what follows training, given that code; the rank's own.

    Raises:
        InputError: for a command that starts none.
    """
    if not waits_for_program(options.script):
        return end(options, run(options))
    world_size, node = options.world_size, options.local_world_size
    set_environment(world_size, options.rank, node)
    put_first("PYTHONPATH", STARTUP)
    programs = Programs(child=False)
    code = replace(options, trace=Path(os.devnull), check=False)
    waits = (str(programs.claim), str(os.getpid()))
    _, *command = own_process(_MODULE, packed(RanksOptions((code,))), *waits)
    programs.follow(command, options.rank % min(node, world_size))
    started, last = start_program(options.script), None
    while started.poll() is None:
        if not programs.claim.exists():
            time.sleep(_LOOK_S)
            continue
        words, environment, folder = json.loads(programs.claim.read_text())
        last = replace(options, script=tuple(words))
        program = partial(_be, last, environment, folder, recorder, run, end)
        _, status = os.waitpid(fork_rank(program), 0)
        if (ended := ended_with(status, options.rank)) != _PREPARED:
            # What comes after training may miss what that would have left.
            programs.claim.write_text("")
            started.wait()
            programs.claim.unlink()
            return ended
        programs.claim.unlink()
    problem = "starts no file or module that imports torch" if last is None else "trains nothing"
    raise InputError("script", options.script[0], problem, "train.py, train.sh")


def _be(
    options: RankOptions,
    environment: dict[str, str],
    folder: str,
    recorder: Recorder,
    run: Run,
    end: End,
) -> int:
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop(SETTINGS)
    os.chdir(folder)
    code = run(options)
    used = recorder.operations or recorder.collectives
    return end(options, code) if code or used else _PREPARED


def main(arguments: list[str]) -> None:
    """What a program that imports torch turns into: its words, environment and folder are written,
    and it ends when they have been run; code runs itself."""
    options, claim, rank_process, *began = arguments
    _, _, *words = began
    if words[0] == "-c":
        os.execv(sys.executable, own_process(RANK_PROCESS, options, *began))
    found, text = (
        Path(f"{claim}.{os.getpid()}"),
        json.dumps([words, dict(os.environ), os.getcwd()]),
    )
    found.write_text(text)
    found.replace(claim)
    with contextlib.suppress(OSError):
        while Path(claim).read_text() == text:
            os.kill(int(rank_process), 0)
            time.sleep(_LOOK_S)


if __name__ == "__main__":
    main(sys.argv[1:])
