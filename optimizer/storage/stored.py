"""An executor that looks a recipe up before it simulates it, and keeps what it simulated."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from optuna.exceptions import StorageInternalError

from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.space import Indices
from trainscout.optimizer.storage.backends import damaged_records
from trainscout.optimizer.storage.claims import Claims
from trainscout.optimizer.storage.trials import TrialStore
from trainscout.simulators.predictor.io.output import fingerprint
from trainscout.simulators.predictor.question.recipe import Recipe


class StoredExecutor(Executor):
    """Around another executor: what the store has is not simulated, what another process is
    simulating is waited for, and the rest is simulated here and stored at once.

    ``restored`` and ``shared`` count the outcomes that were in the store at the start, and
    those that other processes supplied since. ``check`` has the last word on an outcome before
    it is stored. Where the store can no longer be written (a full disk), the search goes on
    without it, and ``unstored`` says why.
    """

    def __init__(
        self,
        executor: Executor,
        store: TrialStore,
        point_of: Callable[[Recipe], Indices],
        check: Callable[[Outcome], Outcome],
    ) -> None:
        super().__init__()
        self.restored = 0
        self.shared = 0
        self.unstored: OSError | None = None
        self._executor = executor
        self._store = store
        self._point_of = point_of
        self._check = check
        self._at_start = frozenset(store.known)
        self._claims = Claims(store.storage, store.name)

    def __enter__(self) -> Self:
        self._claims.__enter__()
        self._executor.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.__exit__()
        with self._writing():
            self._claims.__exit__()
        self.notes += self._executor.notes
        if damaged := damaged_records(self._store.storage):
            records = "record is" if damaged == 1 else "records are"
            self.notes.append(
                f"{damaged:,} {records} not what was written to {self._store.location}, and left "
                "out: what they held was simulated again"
            )
        if self.shared:
            self.notes.append(f"{self.shared:,} recipes simulated by other processes")

    def run(self, recipes: Sequence[Recipe]) -> Iterator[tuple[int, Outcome]]:
        keys = [fingerprint(dataclasses.asdict(recipe)) for recipe in recipes]
        pending = list(range(len(recipes)))
        while pending and self.unstored is None:
            self._store.refresh()
            found = {p: outcome for p in pending if (outcome := self._found(recipes[p], keys[p]))}
            yield from found.items()
            pending = [position for position in pending if position not in found]
            mine = pending
            with self._writing():
                mine = [pending[i] for i in self._claims.take([keys[p] for p in pending])]
            # Whoever held these before may have stored them just before leaving.
            self._store.refresh()
            mine = [position for position in mine if recipes[position] not in self._store.known]
            for index, simulated in self._executor.run([recipes[p] for p in mine]):
                recipe, outcome = recipes[mine[index]], self._check(simulated)
                if self.unstored is None:
                    with self._writing():
                        point = self._point_of(recipe)
                        self._store.add(point, recipe, outcome, self._claims.owner)
                yield mine[index], outcome
            pending = [position for position in pending if position not in mine]
            if pending and not mine:
                with self._writing():
                    self._claims.wait([keys[p] for p in pending])
        for index, simulated in self._executor.run([recipes[p] for p in pending]):
            yield pending[index], self._check(simulated)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Remember why the store cannot be written, and go on."""
        try:
            yield
        except (OSError, StorageInternalError) as error:
            place = self._store.location
            cause = error.__cause__ or error
            number = error.errno if isinstance(error, OSError) else errno.EIO
            words = error.strerror if isinstance(error, OSError) else str(cause)
            self.unstored = OSError(number, words, place)

    def _found(self, recipe: Recipe, key: str) -> Outcome | None:
        """What the store has, or the failure of a process that is still there."""
        outcome = self._store.known.get(recipe)
        holder = self._claims.holder(key)
        if outcome is None and holder is not None:
            outcome = self._store.failed_at(recipe, holder)
        if outcome is not None:
            if recipe in self._at_start:
                self.restored += 1
            else:
                self.shared += 1
        return outcome
