"""Starting and ending the processes that ranks run in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from trainscout.simulators.predictor.io.own_process import own_process
from trainscout.simulators.virtual_cluster.live.rank_process import PROCESS, LiveOptions


def rank_environment() -> dict[str, str]:
    """Variables of a process that ranks are forked from: one thread to a rank, and sets walked in
    the same order in every run."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        "PYTHONHASHSEED": "0",
        **dict.fromkeys(threads, "1"),
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
    }


def start_ranks(options: LiveOptions) -> subprocess.Popen[str]:
    """The prepared process, in a group of its own."""
    return subprocess.Popen(
        own_process(PROCESS, options.to_json()),
        stdout=subprocess.PIPE,
        env=rank_environment(),
        text=True,
        start_new_session=True,
    )


def end_all(process: subprocess.Popen[str]) -> None:
    """End the prepared process and the ranks it forked."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
