"""Search every published question again: ``trainscout questions --help``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import joblib

from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, json_text, write_output
from trainscout.simulators.predictor.io.terminal import progress_bar, show
from trainscout.simulators.predictor.question.errors import InputError, require_positive

from .published.jobs.jobs import shipped_declarations
from .published.published import add_runs
from .published.reading.rows import read_rows
from .published.regularity import mark_extrapolated
from .searched.answer import Answer, answer, default_software
from .searched.grouping import PublishedQuestion, most_telling, published_questions
from .searched.report import answer_tables, questions_page, report


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0, or 1 when there is no answer."""
    options = _parser().parse_args(arguments)
    check_output("--json", options.json, [options.runs, options.page])
    check_output("--page", options.page, [options.runs, options.json])
    if options.workers != -1:
        require_positive("--workers", options.workers)
    chosen, total = _chosen(options)
    with progress_bar("searching", len(chosen)) as advance:
        found = answers(chosen, options.workers, advance)
    if options.json is not None:
        write_output("--json", options.json, json_text(report(found), 1))
    if options.page is not None:
        write_output("--page", options.page, questions_page(found, total))
    show(answer_tables(found))
    return OK if found else FAILURE


def _chosen(options: argparse.Namespace) -> tuple[tuple[PublishedQuestion, ...], int]:
    """The questions to search, and how many there are."""
    declarations = shipped_declarations()
    questions = published_questions(
        mark_extrapolated(read_rows(options.runs)), declarations, default_software()
    )
    if not options.all:
        questions = most_telling(questions)
    names = [each.name for each in questions]
    if options.only:
        questions = tuple(q for q in questions if any(w in q.name for w in options.only))
    if not questions:
        wanted = " ".join(options.only) or options.runs
        raise InputError(
            "--only", wanted, "names no question", f"a part of {', '.join(names[:6])}"
        )
    return questions, len(names)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "questions",
        "Search every question that published runs answer (model, GPU, count, batch, sequence, "
        "precision), and say whether what was measured is among the recipes, whether memory cuts "
        "it, and how our best compares with the fastest measured run.",
        "trainscout questions                           # the most telling, some minutes\n"
        "trainscout questions --only 405b --only gpt3   # names that hold one of these\n"
        "trainscout questions --json answers.json      # with all that each answer has",
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
        "--json", type=Path, help="write the summary and every answer to this file"
    )
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    return parser


def answers(
    questions: Sequence[PublishedQuestion], workers: int, advance: Callable[[], None]
) -> tuple[Answer, ...]:
    """The answer of every question, in their order.

    Args:
        questions: what to search.
        workers: processes (1: this one, -1: one a core).
        advance: called after every answer.
    """
    pool = joblib.Parallel(n_jobs=workers, return_as="generator", batch_size=1)
    found = []
    for one in pool(joblib.delayed(_answered)(each) for each in questions):
        found.append(one)
        advance()
    return tuple(found)


def _answered(published: PublishedQuestion) -> Answer:
    return answer(published, shipped_declarations())
