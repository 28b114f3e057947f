"""The process that a search starts beside itself: it logs what it is told to MLflow."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from trainscout.optimizer.tracking.runs import log_spooled, open_store
from trainscout.simulators.predictor.question.redaction import root_cause

_LONGEST_S = 600


def serve() -> int:
    """Open the store named on the first line of stdin; then log one spooled search a line."""
    if hasattr(os, "nice"):
        os.nice(10)  # the search comes first
    requests, answers = sys.stdin, sys.stdout
    # MLflow prints; answers must stay alone on the pipe.
    sys.stdout = sys.stderr
    store = functools.cache(open_store)
    line = requests.readline()
    if line:
        where = json.loads(line)
        # When this fails, the first search is told so.
        with contextlib.suppress(Exception), _at_most(_LONGEST_S):
            store(**where)
    for line in requests:
        path = json.loads(line)["path"]
        try:
            with _at_most(_LONGEST_S):
                run_id = log_spooled(*store(**where), Path(path), again=False)
            answer = {"path": path, "run": run_id}
        except Exception as error:
            answer = {"path": path, "error": root_cause(error)}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """End the process when the body takes longer: the search it belongs to may be long gone."""
    if not hasattr(signal, "alarm"):
        yield
        return
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(serve())
