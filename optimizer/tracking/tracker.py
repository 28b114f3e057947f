"""Hands what is to be tracked to the process that logs it."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any

from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import RunTree, spooled, write_spool
from trainscout.simulators.predictor.io.own_process import own_process
from trainscout.simulators.predictor.question.redaction import redacted_text


class TrackingError(Exception):
    """It is not tracked yet; the text is one line."""


class Tracker:
    """Keeps runs in MLflow, whose store is opened beside the search from the moment this is
    built, or with ``tracking=none`` nowhere."""

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings
        self._logger = (
            None if settings.name == "none" else _logger(settings.uri, settings.experiment)
        )

    def record(self, tree: RunTree) -> str | None:
        """Log a run with its children; where it is now (None: nowhere).

        Raises:
            TrackingError: when the store is unreachable, refuses, or takes too long.
        """
        if self._logger is None:
            return None
        settings, uri = self._settings, redacted_text(self._settings.uri)
        path = write_spool(tree.directory, spooled(tree, settings))
        if not self._logger.is_there():
            # An earlier search of a multirun may have lost it.
            _logger.cache_clear()
            self._logger = _logger(settings.uri, settings.experiment)
        answer = self._logger.ask(str(path), settings.timeout_s)
        if "run" in answer:
            return f"{uri}, experiment {settings.experiment}, run {answer['run']}"
        reason = answer.get("error", f"did not answer within {settings.timeout_s:g} s")
        raise TrackingError(
            f"{uri}: {reason}; trainscout tracking flush {tree.directory} tries again"
        )


def record_or_warn(tracker: Tracker, tree: RunTree) -> str | None:
    """Where a run is kept now; None where it is not, which is a warning."""
    try:
        return tracker.record(tree)
    except TrackingError as error:
        print(f"warning: not tracked in MLflow ({error}); all files are kept", file=sys.stderr)
        return None


class _Logger:
    """A process that opens the store, logs what it is told, and ends with its input.

    It is asked by one path a line on stdin and answers by one line of JSON each.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self._process = subprocess.Popen(
            own_process("trainscout.optimizer.tracking.serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is none of its business.
            start_new_session=True,
            encoding="utf-8",
        )
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="tracking").start()
        self._send({"uri": uri, "experiment": experiment})

    def is_there(self) -> bool:
        return self._process.poll() is None

    def ask(self, path: str, timeout_s: float) -> dict[str, Any]:
        """The answer for the search spooled at ``path``; empty when it takes too long."""
        deadline_s = time.monotonic() + timeout_s
        self._send({"path": path})
        while (left_s := deadline_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get(timeout=left_s)
                # An answer that came too late for the search before is not for this one.
                if answer.get("path", path) == path:
                    return answer
        return {}

    def _send(self, message: dict[str, str]) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):  # something else that was printed
                    self._answers.put(json.loads(line))
        self._answers.put({"error": "the process that logs has ended"})


@functools.lru_cache(maxsize=1)
def _logger(uri: str, experiment: str) -> _Logger:
    """The searches of one multirun share it."""
    return _Logger(uri, experiment)
