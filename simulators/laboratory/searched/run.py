"""Many questions answered by processes of this machine, each kept as soon as it is there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import joblib

from trainscout.simulators.laboratory.published.jobs import shipped_declarations
from trainscout.simulators.laboratory.searched.answer import Answer, answer, search_settings
from trainscout.simulators.laboratory.searched.grouping import PublishedQuestion
from trainscout.simulators.predictor.question.errors import InputError


def answers(
    questions: Sequence[PublishedQuestion],
    workers: int,
    journal: Path | None,
    advance: Callable[[], None],
) -> tuple[Answer, ...]:
    """The answer of every question, in their order.

    Args:
        questions: what to search.
        workers: processes (1: this one, -1: one a core).
        journal: a file that keeps every answer when it is there, and spares those it holds of
            equal questions over an equal space; code that changed is not noticed.
        advance: called after every answer.

    Raises:
        InputError: for a journal that is none, or cannot be written.
    """
    known = {} if journal is None else _read(journal)
    keys = [_key(each) for each in questions]
    found: dict[str, Answer] = {key: known[key] for key in keys if key in known}
    for _ in found:
        advance()
    left = [(key, each) for key, each in zip(keys, questions, strict=True) if key not in found]
    for key, one in _answered(left, workers):
        found[key] = one
        if journal is not None:
            _append(journal, key, one)
        advance()
    return tuple(found[key] for key in keys)


def _answered(
    left: Sequence[tuple[str, PublishedQuestion]], workers: int
) -> Iterator[tuple[str, Answer]]:
    if workers == 1 or len(left) < 2:
        yield from (_one(key, each) for key, each in left)
        return
    pool = joblib.Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    yield from pool(joblib.delayed(_one)(key, each) for key, each in left)


def _one(key: str, published: PublishedQuestion) -> tuple[str, Answer]:
    return key, answer(published, shipped_declarations())


def _key(published: PublishedQuestion) -> str:
    space, options, objective = search_settings()
    about, best = [published.name, dataclasses.asdict(published.question)], published.best
    parts = [*about, best.row.id, best.measured_s, space, repr(options), objective.names]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def _read(journal: Path) -> dict[str, Answer]:
    try:
        lines = journal.read_text("utf-8").splitlines() if journal.exists() else []
        entries = [json.loads(line) for line in lines]
        return {entry.pop("key"): Answer(**entry) for entry in entries}
    except OSError as error:
        raise InputError("--journal", journal, f"cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"holds no answers of this version ({error})"
        raise InputError("--journal", journal, problem, "another file, or a new one") from error


def _append(journal: Path, key: str, one: Answer) -> None:
    try:
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **dataclasses.asdict(one)}) + "\n")
    except OSError as error:
        raise InputError("--journal", journal, f"cannot be written: {error.strerror}") from error
