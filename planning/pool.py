"""Cells searched side by side: one worker process a core, one cell a worker at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import joblib

from trainscout.optimizer.executors.loky import worker_pool
from trainscout.planning.answer import Answer, failed
from trainscout.planning.cells import Cell

AnswerCell = Callable[[Cell], Answer]
"""Searches one cell; importable, since worker processes call it."""


def answer_cells(
    cells: Sequence[Cell], answer: AnswerCell, n_jobs: int
) -> Iterator[tuple[Cell, Answer]]:
    """Each cell with its answer, as they come in.

    A cell that takes its worker down (out of memory, say) is answered as failed. One worker is
    this process. ``n_jobs`` -1 is one worker a core.
    """
    workers = min(int(joblib.effective_n_jobs(n_jobs)), len(cells))
    if workers <= 1:
        for cell in cells:
            yield cell, answer(cell)
        return
    left = dict(enumerate(cells))
    with _ended(worker_pool(workers)) as pool:
        numbers = {pool.submit(answer, cell): number for number, cell in left.items()}
        try:
            for done in as_completed(numbers):
                found = done.result()
                yield left.pop(numbers[done]), found
        except BrokenProcessPool:
            pass  # nobody can tell by which of the cells: they are tried alone below
    for cell in left.values():
        yield cell, _alone(answer, cell)


def _alone(answer: AnswerCell, cell: Cell) -> Answer:
    with _ended(worker_pool(1)) as pool:
        try:
            found: Answer = pool.submit(answer, cell).result()
        except BrokenProcessPool:
            return failed(RuntimeError("the search took its process down; out of memory?"))
        return found


@contextmanager
def _ended(pool: Any) -> Iterator[Any]:
    """A pool whose workers are ended whatever they are doing."""
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, kill_workers=True)
