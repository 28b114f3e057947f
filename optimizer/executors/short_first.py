"""Short work in this process, workers once it lasts: most proofs simulate fewer recipes than it
takes to start workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.simulators.predictor.question.recipe import Recipe

# About twice the CPU seconds that it takes a worker to import all that a simulation needs, and to
# price what this process has priced. They are counted and not the clock's: where others have the
# cores, a worker takes as much longer to start.
WORKERS_PAY_S = 3.0
# With a declared network every worker plays over again what this process has played.
WORKERS_PAY_WITH_NETWORK_S = 20.0


class ShortFirstExecutor(Executor):
    """``alone`` for the first seconds, then what ``make_workers`` makes, once they are needed."""

    def __init__(
        self, alone: Executor, make_workers: Callable[[], Executor], workers_pay_s: float
    ) -> None:
        super().__init__()
        self._alone, self._make_workers = alone, make_workers
        self._left_s = workers_pay_s
        self._workers: Executor | None = None
        self._started = ExitStack()

    def run(self, recipes: Sequence[Recipe]) -> Iterator[tuple[int, Outcome]]:
        done = 0
        while done < len(recipes) and self._left_s > 0:
            started_s = time.process_time()
            outcomes = self._alone.map(recipes[done : done + 1])
            self._left_s -= time.process_time() - started_s
            yield done, outcomes[0]
            done += 1
        if done == len(recipes):
            return
        if self._workers is None:
            self._workers = self._make_workers()
            self.notes = self._workers.notes
            self._started.enter_context(self._workers)
        for position, outcome in self._workers.run(recipes[done:]):
            yield done + position, outcome

    def __exit__(self, *_: object) -> None:
        self._started.close()
