"""A process that the emulation is installed in once, which forks itself into ranks.

Ranks share the memory of all that was imported before (copy on write), and nothing is imported
twice.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from trainscout.simulators.predictor.io.command_line import FAILURE, explain
from trainscout.simulators.predictor.io.own_process import end_with_parent
from trainscout.simulators.predictor.question.errors import InputError


def preload_modules(modules: Sequence[str]) -> None:
    """Import what all ranks will; nothing is collected from then on that ranks share.

    Raises:
        InputError: for a module that cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError("--preload", module, f"cannot be imported: {error}") from error
    # A collection would write into every object's head and so copy all that is shared.
    gc.collect()
    gc.freeze()


def fork_rank(run: Callable[[], int]) -> int:
    """Run in a forked process, which ends with the code that ``run`` returns; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()
    if torch := sys.modules.get("torch"):
        # A forked process gets its pool of threads when it first asks: not when the engine's
        # threads, one a GPU, ask at once, of which one then finds none.
        torch.set_num_threads(torch.get_num_threads())
    random.seed()
    code = FAILURE
    try:
        code = run()
    except InputError as error:
        code = explain(error, debug=False)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Frameworks leave threads and groups behind that would wait for other ranks.
        os._exit(code)


def ended_with(status: int, rank: int) -> int:
    """The exit code of a rank's process; one that a signal ended has failed."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        print(f"rank {rank} was ended by signal {-code}", file=sys.stderr)
        return FAILURE
    return code
