"""Search every published question again: ``trainscout questions --help``."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import joblib

from trainscout.simulators.laboratory.published.jobs import shipped_declarations
from trainscout.simulators.laboratory.published.published import add_runs
from trainscout.simulators.laboratory.published.regularity import mark_extrapolated
from trainscout.simulators.laboratory.published.rows import read_rows
from trainscout.simulators.laboratory.searched.answer import (
    Answer,
    answer,
    default_software,
    search_settings,
)
from trainscout.simulators.laboratory.searched.grouping import (
    PublishedQuestion,
    most_telling,
    published_questions,
)
from trainscout.simulators.laboratory.searched.page import questions_page
from trainscout.simulators.laboratory.searched.summary import answer_tables, as_dict, report
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import check_output, write_output
from trainscout.simulators.predictor.io.terminal import progress_bar, show
from trainscout.simulators.predictor.question.errors import InputError, require_positive


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0, or 1 when there is no answer."""
    options = _parser().parse_args(arguments)
    outputs = {"--json": options.json, "--csv": options.csv, "--page": options.page}
    read = [options.runs, options.journal]
    for option, path in outputs.items():
        check_output(option, path, [*read, *(p for o, p in outputs.items() if o != option)])
    if options.workers != -1:
        require_positive("--workers", options.workers)
    chosen, total = _chosen(options)
    with progress_bar("searching", len(chosen)) as advance:
        found = answers(chosen, options.workers, options.journal, advance)
    if options.json is not None:
        text = json.dumps(report(found), indent=1, allow_nan=False) + "\n"
        write_output("--json", options.json, text)
    if options.csv is not None:
        rows = [as_dict(one) for one in found]
        write_output("--csv", options.csv, csv_text(rows[0], rows))
    if options.page is not None:
        write_output("--page", options.page, questions_page(found, total))
    show(answer_tables(found))
    return OK if found else FAILURE


def _chosen(options: argparse.Namespace) -> tuple[tuple[PublishedQuestion, ...], int]:
    """The questions to search, and how many there are."""
    declared = shipped_declarations()
    questions = published_questions(
        mark_extrapolated(read_rows(options.runs)), declared, default_software()
    )
    if not options.all:
        questions = most_telling(questions)
    names = [each.name for each in questions]
    if options.only:
        questions = tuple(q for q in questions if any(w in q.name for w in options.only))
    if not questions:
        given = " ".join(options.only) or options.runs
        raise InputError("--only", given, "names no question", f"a part of {', '.join(names[:6])}")
    return questions, len(names)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "questions",
        "Search every question that published runs answer (model, GPU, count, batch, sequence, "
        "precision), and say whether what was measured is among the recipes, whether memory cuts "
        "it, and how our best compares with the fastest measured run.",
        "trainscout questions                           # the most telling, some minutes\n"
        "trainscout questions --only 405b --only gpt3   # names that hold one of these\n"
        "trainscout questions --journal answers.jsonl --json answers.json --csv answers.csv",
        "0 done; 1 an internal failure; 2 wrong input",
    )
    add_runs(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="every question; without it one of each model, GPU and precision class, and no more "
        "than three of a publication on GPUs of one architecture",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="questions so named (repeat)"
    )
    parser.add_argument(
        "--workers", type=int, default=-1, help="processes (default -1: one a core)"
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="keep every answer here as it comes, and go on from those it holds",
    )
    parser.add_argument(
        "--json", type=Path, help="write the summary and every answer to this file"
    )
    parser.add_argument("--csv", type=Path, help="write a row for every question")
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    return parser


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
