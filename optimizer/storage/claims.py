"""Which process simulates which recipe, when several share one storage.

A study beside the trials is a log that every process reads in the same order: who entered,
who claims which recipes, who left, who was found dead. A recipe belongs to the first claim on
it by a process that is still there. So no two processes simulate the same recipe, and what a
dead one held is taken over.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError

# A process beats this often; one on another machine that has not for the lease is dead.
BEAT_S = 10.0
LEASE_S = 60.0
_POLL_S = 0.1

# Owners of this process that have not left: a search that failed is as dead as a killed one.
_present: set[str] = set()


class Claims:
    """This process's part in the log. Keys are content hashes of recipes.

    Use as a context manager: leaving gives back what was not simulated.
    """

    def __init__(self, storage: Any, study_name: str) -> None:
        self._study = optuna.create_study(
            storage=storage, study_name=f"{study_name}-claims", load_if_exists=True
        )
        self._read = 0
        self._gone: set[str] = set()
        self._here: list[str] = []
        self._holders: dict[str, str] = {}
        # Owner: its beat when last seen to change, and when that was by our own clock.
        self._beats: dict[str, tuple[int, float]] = {}
        self._ended = threading.Event()
        self.owner = ""
        self._enter()

    def __enter__(self) -> Claims:
        threading.Thread(target=self._beat, daemon=True, name="claims-beat").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        _present.discard(self.owner)
        self._log({"left": self.owner})

    def take(self, keys: Sequence[str]) -> list[int]:
        """Claim some of the recipes that nobody holds; the positions that became ours."""
        self._sync()
        if self.owner in self._gone:  # somebody took us for dead: what we held is theirs
            _present.discard(self.owner)
            self._enter()
        free = [position for position, key in enumerate(keys) if self.holder(key) is None]
        if not free:
            return []
        # Half a fair share at a time leaves the rest to whoever is faster, and everybody starts
        # somewhere else, so that few claims meet.
        count = len(self._here)
        share = len(free) if count == 1 else math.ceil(len(free) / (2 * count))
        start = self._here.index(self.owner) * len(free) // count
        wanted = (free[start:] + free[:start])[:share]
        self._log({"owner": self.owner, "keys": [keys[position] for position in wanted]})
        self._sync()
        return [position for position in wanted if self.holder(keys[position]) == self.owner]

    def holder(self, key: str) -> str | None:
        """Who is simulating a recipe or has; None when nobody who is still there."""
        holder = self._holders.get(key)
        return None if holder in self._gone else holder

    def wait(self, keys: Sequence[str]) -> None:
        """Wait a moment for others to simulate what they hold; find the dead among them."""
        time.sleep(_POLL_S)
        self._sync()
        for owner in {self.holder(key) for key in keys} - {None, self.owner}:
            if owner is not None and self._is_dead(owner):
                self._log({"dead": owner})

    def _enter(self) -> None:
        self.owner = f"{_machine()}:{os.getpid()}:{_started(os.getpid())}:{uuid.uuid4().hex[:8]}"
        _present.add(self.owner)
        self._log({"entered": self.owner})
        self._sync()
        # On this machine the dead are known at once, and what they left is not waited for.
        for owner in list(self._here):
            if owner != self.owner and _died_here(owner):
                self._log({"dead": owner})
        self._sync()

    def _log(self, entry: dict[str, Any]) -> None:
        self._study.add_trial(optuna.trial.create_trial(value=0.0, user_attrs=entry))

    def _sync(self) -> None:
        trials = self._study.get_trials(deepcopy=False)
        for trial in trials[self._read :]:
            entry = trial.user_attrs
            if "entered" in entry:
                self._here.append(entry["entered"])
            elif "keys" in entry:
                if entry["owner"] not in self._gone:
                    for key in entry["keys"]:
                        if self.holder(key) is None:
                            self._holders[key] = entry["owner"]
            else:
                owner = entry.get("left") or entry["dead"]
                self._gone.add(owner)
                if owner in self._here:
                    self._here.remove(owner)
        self._read = len(trials)

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(BEAT_S):
            beats += 1
            # A store that cannot be written is told of by whoever writes a result.
            with contextlib.suppress(OSError, StorageInternalError):
                self._study.set_user_attr(f"beat:{self.owner}", beats)

    def _is_dead(self, owner: str) -> bool:
        if _is_of_this_machine(owner):
            return _died_here(owner)
        beat = self._study.user_attrs.get(f"beat:{owner}", 0)
        seen, since_s = self._beats.get(owner, (-1, 0.0))
        if beat != seen:
            self._beats[owner] = (beat, time.monotonic())
            return False
        return time.monotonic() - since_s > LEASE_S


@functools.cache
def _machine() -> str:
    """What has one set of process numbers: a boot of a machine, and a container's share of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}".replace(":", "")
    except OSError:
        # Not Linux: numbers are compared by beats alone.
        return f"{socket.gethostname()}/{uuid.uuid4().hex}".replace(":", "")


def _is_of_this_machine(owner: str) -> bool:
    return owner.split(":")[0] == _machine()


def _died_here(owner: str) -> bool:
    machine, pid, started, _ = owner.split(":")
    if machine != _machine():
        return False
    if int(pid) == os.getpid():
        return owner not in _present
    return _started(int(pid)) != started


def _started(pid: int) -> str | None:
    """When a process of this machine started, in ticks since boot; None when it is no more."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]
