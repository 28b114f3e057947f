"""Dependency rules of the user's own (Moye, section 4.2), for built programs and for traces.

A rule file is Python with a function ``edges(operations)``: it is given what is played and yields
pairs of these, of which the second begins when the first has ended. Here are the file, the pairs,
and what they do to a program of the built-in workload; ``execution.rules`` of the virtual cluster
does it to traces.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Block, Collective
from trainscout.simulators.predictor.workload.schedules.passes import FORWARD, PASS_NAMES
from trainscout.simulators.predictor.workload.weights.data_parallel import GATHER, REDUCE

from .assemble import Assembler, Program
from .engine import Ints

_FUNCTION = "edges"
FIELD = "rules"
"""The setting that says where they are: of ``trainscout simulate``, and of replayed traces with
two dashes before it."""


@dataclass(frozen=True)
class Operation:
    """What a rank runs.

    Of a trace ``rank`` is its rank and ``event`` the number of its event; of a built program they
    are a stage of the pipeline, of which one rank stands for all, and the number of a task.
    ``kind``: "kernel", or the collective's ("all_reduce", ...), "send", "recv"; in a built program
    what a stage computes is a pass, or a part of one between exchanges, as one "kernel".
    ``name``: of the kernel as in the trace, of the communicator else; of a built program the kind
    of pass, or what is exchanged. ``step``: 0 of the run-up (where there is one), then 1.
    ``phase``: "forward", "backward", "optimizer", "other"; ``number``: which of them in the step.
    ``peer`` of a message; ``sequence`` as in the trace, of a message or collective. ``chunk`` and
    ``micro_batch`` of a pass in a built program.
    """

    rank: int
    event: int
    kind: str
    name: str
    step: int
    phase: str
    number: int
    peer: int | None = None
    sequence: int | None = None
    chunk: int | None = None
    micro_batch: int | None = None


Rules = Callable[[Sequence[Operation]], Iterable[tuple[Operation, Operation]]]


def read_rules(path: Path, field: str = FIELD) -> Rules:
    """The ``edges`` of a rule file, which is run for that.

    Raises:
        InputError: for a file that cannot be run, or has no such function.
    """
    if not path.is_file():
        raise InputError(field, path, "is no file", "a Python file with a function edges")
    try:
        found = runpy.run_path(str(path)).get(_FUNCTION)
    except (Exception, SystemExit) as error:  # whatever a file of the user's raises
        raise InputError(field, path, f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise InputError(field, path, "has no function edges", "def edges(operations): ...")
    rules: Rules = found
    return rules


def pairs_of(
    rules: Rules, operations: Sequence[Operation], field: str = FIELD
) -> Iterator[tuple[Operation, Operation]]:
    """The pairs that rules yield of what is played.

    Raises:
        InputError: for what is no pair of operations, or when the rules fail.
    """
    known = set(operations)
    try:
        for pair in rules(operations):
            yield _checked(pair, known, field)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever a function of the user's raises
        raise InputError(field, _FUNCTION, f"{type(error).__name__}: {error}") from error


def _checked(pair: Any, known: set[Operation], field: str) -> tuple[Operation, Operation]:
    allowed = "pairs (before, after) of the operations it is given"
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError(field, pair, "is no pair", allowed)
    for each in pair:
        if not isinstance(each, Operation) or each not in known:
            raise InputError(field, each, "is no operation that runs", allowed)
    before, after = pair
    if before == after:
        raise InputError(field, before, "would wait for itself", allowed)
    return before, after


def ruled(program: Program, assembler: Assembler, rules: Rules) -> Program:
    """A built program with the dependencies that rules add to it."""
    found = list(pairs_of(rules, operations_of(program, assembler)))
    before = np.array([each.event for each, _ in found], dtype=np.int64)
    after = np.array([each.event for _, each in found], dtype=np.int64)
    structure, stages = program.structure, assembler.job.recipe.pp
    earlier, later = (
        np.concatenate(ends) for ends in zip(structure.edges, (before, after), strict=True)
    )
    lags = np.concatenate((program.edge_lags, np.zeros(len(found))))
    lag_slot = np.concatenate((structure.edge_lag_slot, np.full(len(found), stages)))
    order = np.argsort(earlier, kind="stable")
    start = np.zeros(len(program.tasks.work) + 1, dtype=np.int64)
    np.cumsum(np.bincount(earlier, minlength=len(start) - 1), out=start[1:])
    tasks = replace(
        program.tasks,
        successor_start=start,
        successors=later[order],
        lags=lags[order],
        # The sweep knows no dependencies between streams beside those of one stage.
        side=None,
    )
    whole = replace(
        structure, edges=(earlier, later), edge_lag_slot=lag_slot, lag_slot=lag_slot[order]
    )
    return replace(program, tasks=tasks, structure=whole, edge_lags=lags)


def operations_of(program: Program, assembler: Assembler) -> list[Operation]:
    """What each stage runs, in the order in which it is launched: what a part of a pass needs
    gathered before it, and the reduction of what it made behind it."""
    found: list[Operation] = []

    def others(stage: int, tasks: Iterable[int], phase: str, number: int) -> None:
        for task in tasks:
            what = _exchange(program.blocks[task])
            found.append(Operation(stage, task, *what, 1, phase, number))

    for stage, tasks in enumerate(program.structure.compute_tasks):
        before, after = _exchanges(program, stage)
        begun = {"forward": -1, "backward": -1}
        for each in assembler.contents(program, stage):
            phase = "forward" if each.way == FORWARD else "backward"
            begun[phase] += each.begins
            own = (PASS_NAMES[each.way], 1, phase, begun[phase], None, None)
            others(stage, before.get(each.task, ()), phase, begun[phase])
            found.append(Operation(stage, each.task, "kernel", *own, each.chunk, each.micro_batch))
            others(stage, after.get(each.task, ()), phase, begun[phase])
        passes = program.structure.pass_tasks[stage]
        others(stage, tasks[passes:].tolist(), "optimizer", 0)
    return found


def _exchanges(program: Program, stage: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The gathers that a stage's compute tasks wait for, and the reductions that wait for them."""
    structure = program.structure
    compute = set(structure.compute_tasks[stage].tolist())
    gathers: dict[int, list[int]] = {}
    reductions: dict[int, list[int]] = {}
    sources, targets = structure.edges
    own = structure.communication
    reduced: Ints = np.flatnonzero(own[targets] & ~own[sources])
    for source, target in zip(sources[reduced].tolist(), targets[reduced].tolist(), strict=True):
        # What is gathered waits for a pass, too, where few are in flight.
        if source in compute and program.blocks[target].name == REDUCE:
            reductions.setdefault(source, []).append(target)
    gathered: Ints = np.flatnonzero(own[sources] & ~own[targets])
    for source, target in zip(sources[gathered].tolist(), targets[gathered].tolist(), strict=True):
        if target in compute and program.blocks[source].name == GATHER:
            gathers.setdefault(target, []).append(source)
    return gathers, reductions


def _exchange(block: Block) -> tuple[str, str]:
    """Kind and name of a task that is no pass: what computes besides is a "kernel"."""
    if block.name not in (REDUCE, GATHER):
        return "kernel", block.name
    return next(op.kind for op in block.ops if isinstance(op, Collective)), block.name
