"""A whole study: its cells searched or read back, then what they say for each model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import joblib

from trainscout.optimizer.executors.loky import worker_pool
from trainscout.planning.answer import Answer, failed
from trainscout.planning.cells import Cell, Declarations, study_cells, what_if_cell
from trainscout.planning.fabric_cost import FabricCost, fabric_costs
from trainscout.planning.goodput import Reliability, goodput
from trainscout.planning.points import (
    Point,
    TargetAnswer,
    answer_target,
    at_price,
    front,
    make_point,
    preferred,
)
from trainscout.planning.scaling import ScalingCurve, scaling_curves
from trainscout.planning.sensitivity import BreakEven, Effect, break_even, effects_without_search
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Study, Target, WhatIf
from trainscout.simulators.predictor.question.errors import InputError

NETWORK = {"network x 0.5": WhatIf(network=0.5), "network x 2": WhatIf(network=2.0)}
"""What-ifs that every answer gets."""


@dataclass(frozen=True)
class Progress:
    """Where a study stands: ``total`` cells, those of what-ifs included, ``done`` of them
    answered, ``stored`` of those read back; ``cell`` is the latest. ``eta_s`` is what the rest
    takes, if it takes as long a cell as those that were searched."""

    done: int
    total: int
    stored: int
    cell: Cell
    answer: Answer
    elapsed_s: float
    eta_s: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class CellResult:
    """A cell's answer; ``point`` is None, and ``reason`` says why, where no run is possible."""

    cell: Cell
    answer: Answer
    point: Point | None
    reason: str | None


@dataclass(frozen=True)
class ScenarioAnswer:
    """What a model's answer is at other prices; ``chosen`` and ``meets_all`` as in
    ``ModelOutcome``."""

    name: str
    chosen: Point | None
    meets_all: bool


@dataclass(frozen=True)
class ModelOutcome:
    """What a study says of one model.

    ``chosen`` is the preferred cell of those that meet every target, or, where none does
    (``meets_all`` false), of all that fit; ``effects`` and ``break_evens`` are about it, and
    ``scenarios`` says which it is at other prices. ``fabrics``: clusters asked with several.
    """

    model: str
    points: tuple[Point, ...]
    front: tuple[Point, ...]
    targets: tuple[TargetAnswer, ...]
    chosen: Point | None
    meets_all: bool
    curves: tuple[ScalingCurve, ...]
    scenarios: tuple[ScenarioAnswer, ...]
    fabrics: tuple[FabricCost, ...]
    effects: tuple[Effect, ...] = ()
    break_evens: tuple[BreakEven, ...] = ()


@dataclass(frozen=True)
class StudyOutcome:
    """``searched`` and ``stored`` count cells, those of what-ifs included."""

    study: Study
    results: tuple[CellResult, ...]
    models: tuple[ModelOutcome, ...]
    searched: int
    stored: int
    wall_s: float


class Answers:
    """Answers cells, each question once: from the store, or by searching. Counts both."""

    def __init__(
        self, store: AnswerStore, answer: AnswerCell, n_jobs: int, on_progress: OnProgress
    ) -> None:
        self._store, self._answer = store, answer
        self._n_jobs, self._on_progress = n_jobs, on_progress
        self._started_s = time.monotonic()
        self.searched = self.stored = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def of(self, cells: Sequence[Cell], more: int = 0) -> dict[str, Answer]:
        """The answers by the cells' keys; about ``more`` are asked for afterwards."""
        before = self.searched + self.stored
        found: dict[str, Answer] = {}
        missing = []
        requested = {cell.key: cell for cell in cells}
        for cell in requested.values():
            if (kept := self._store.read(cell)) is None:
                missing.append(cell)
            else:
                found[cell.key] = kept
        stored = len(found)
        self.stored += stored
        workers = joblib.effective_n_jobs(self._n_jobs)
        for cell, answer in answer_cells(missing, self._answer, self._n_jobs):
            self._store.write(cell, answer)
            self.searched += 1
            found[cell.key] = answer
            left = len(requested) - len(found) + more
            done, elapsed_s = before + len(found), self.elapsed_s
            # Those that the other workers are at are half done.
            halves = min(workers - 1, len(requested) - len(found)) / 2
            eta_s = elapsed_s / (self.searched + halves) * (left - halves)
            self._on_progress(
                Progress(done, done + left, self.stored, cell, answer, elapsed_s, eta_s)
            )
        return found


def run_study(
    study: Study,
    declarations: Declarations,
    reliability: Reliability,
    store: AnswerStore,
    answer: AnswerCell,
    *,
    n_jobs: int,
    on_progress: OnProgress,
) -> StudyOutcome:
    """Answer every cell of a study, and what if its answers' circumstances change.

    Raises:
        InputError: for a cell that cannot be declared.
        KeyboardInterrupt: on Ctrl-C; finished cells are stored.
    """
    answers = Answers(store, answer, n_jobs, on_progress)
    cells = study_cells(study, declarations)
    per_model = len({*NETWORK.values(), *study.what_ifs.values()})
    found = answers.of(cells, more=per_model * len(study.models))
    results = [_result(cell, found[cell.key], reliability) for cell in cells]
    drafts = [_draft(model, results, study) for model in study.models]
    requested = [
        (number, name, cell)
        for number, draft in enumerate(drafts)
        if draft.chosen is not None
        for name, cell in _what_ifs(study, declarations, draft.chosen)
    ]
    what_ifs = answers.of([cell for _, _, cell in requested if isinstance(cell, Cell)])
    models = [
        _finished(
            draft,
            study,
            reliability,
            [(name, cell) for at, name, cell in requested if at == number],
            what_ifs,
        )
        for number, draft in enumerate(drafts)
    ]
    return StudyOutcome(
        study, tuple(results), tuple(models), answers.searched, answers.stored, answers.elapsed_s
    )


def _result(cell: Cell, answer: Answer, reliability: Reliability) -> CellResult:
    if answer.best is None:
        return CellResult(cell, answer, None, answer.reason)
    cluster = cell.question.cluster
    try:
        share = goodput(reliability, cluster.num_gpus, cluster.num_nodes)
    except InputError as error:
        return CellResult(cell, answer, None, error.problem)
    return CellResult(cell, answer, make_point(cell, answer.best, share), None)


def _draft(model: str, results: Iterable[CellResult], study: Study) -> ModelOutcome:
    """What cells say of a model, without what changes would do."""
    points = tuple(
        result.point
        for result in results
        if result.point is not None and result.cell.model == model
    )
    scenarios = study.price_scenarios.items()
    return ModelOutcome(
        model,
        points,
        tuple(front(points)),
        tuple(answer_target(name, target, points) for name, target in study.targets.items()),
        *_choose(points, study),
        tuple(scaling_curves(points)),
        scenarios=tuple(_scenario(name, prices, points, study) for name, prices in scenarios),
        fabrics=tuple(fabric_costs(points, study.fabric_prices)),
    )


def _choose(points: Sequence[Point], study: Study) -> tuple[Point | None, bool]:
    """The preferred of the points, and whether it meets every target."""
    good = [point for point in points if _meets(point, study.targets.values())]
    return preferred(good or points, study.prefer), bool(good)


def _meets(point: Point, targets: Iterable[Target]) -> bool:
    return all(point.meets(target) for target in targets)


def _what_ifs(
    study: Study, declarations: Declarations, chosen: Point
) -> list[tuple[str, Cell | InputError]]:
    own = {name: w for name, w in NETWORK.items() if w not in study.what_ifs.values()}
    if chosen.cell.question.cluster.num_nodes == 1:
        own = {}
    found: list[tuple[str, Cell | InputError]] = []
    for name, what_if in {**own, **study.what_ifs}.items():
        try:
            found.append((name, what_if_cell(study, declarations, chosen.cell, what_if)))
        except InputError as error:
            found.append((name, error))
    return found


def _finished(
    draft: ModelOutcome,
    study: Study,
    reliability: Reliability,
    what_ifs: Sequence[tuple[str, Cell | InputError]],
    answers: dict[str, Answer],
) -> ModelOutcome:
    chosen = draft.chosen
    if chosen is None:
        return draft
    effects = effects_without_search(chosen, reliability)
    effects += [_effect(name, cell, answers, chosen, reliability) for name, cell in what_ifs]
    limits = [Target(target.days, None, target.gpus) for target in study.targets.values()]
    if not _meets(chosen, limits):
        limits = []  # they are out of reach: nothing keeps to them
    in_time = [point for point in draft.points if _meets(point, limits)]
    return replace(draft, effects=tuple(effects), break_evens=tuple(break_even(chosen, in_time)))


def _scenario(
    name: str, prices: Mapping[str, float], points: Sequence[Point], study: Study
) -> ScenarioAnswer:
    moved = []
    for point in points:
        gpu = point.cell.question.gpu
        moved.append(at_price(point, prices.get(gpu.name, gpu.price_usd_per_hour)))
    return ScenarioAnswer(name, *_choose(moved, study))


def _effect(
    name: str,
    cell: Cell | InputError,
    answers: dict[str, Answer],
    chosen: Point,
    reliability: Reliability,
) -> Effect:
    if isinstance(cell, InputError):
        return Effect(name, None, None, chosen.num_gpus, reason=cell.problem)
    result = _result(cell, answers[cell.key], reliability)
    if result.point is None:
        return Effect(name, None, None, cell.num_gpus, reason=result.reason)
    changed = result.point.best.recipe != chosen.best.recipe
    return Effect(name, result.point.days, result.point.usd, cell.num_gpus, changed)


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
