"""``trainscout trace``: look at traces of ranks, put them together, convert them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainscout.simulators.predictor.io.command_line import IMPOSSIBLE_LAUNCHES, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output
from trainscout.simulators.predictor.question.errors import InputError

from .collate.classes import TOLERANCE
from .collate.collated import Collated, collate
from .collate.probe import parse_ranks
from .events import Trace
from .files import read_directory, read_trace

ALL = "all"


def show(arguments: Sequence[str]) -> int:
    """``trainscout trace show``."""
    parser = command_parser(
        "trace show",
        "Show what a trace amounts to: what one rank did, as trainscout run writes it.",
        "trainscout trace show traces/rank_00000.trace.gz\n"
        "trainscout trace show traces/rank_00008.trace.gz | less",
    )
    parser.add_argument("trace", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    from . import command_tables
    from .command_tables import summarise

    trace = read_trace(options.trace)
    command_tables.show(command_tables.summary_tables(trace.header, summarise(trace)))
    return OK


def join(arguments: Sequence[str]) -> int:
    """``trainscout trace collate``."""
    parser = command_parser(
        "trace collate",
        "Put a job together from traces of its ranks: which do the same, which calls match.",
        "trainscout trace collate traces\ntrainscout trace collate traces --tolerance 0.05",
        "0 done; 1 an internal failure; 2 wrong input; 4 launches of different ranks do not fit "
        "each other",
    )
    parser.add_argument("traces", type=Path, metavar="DIR")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="SHARE",
        help="how much work around the schedule may differ within a class (default %(default)s)",
    )
    options = parser.parse_args(arguments)
    from . import command_tables

    if not 0 <= options.tolerance < 1:
        raise InputError("--tolerance", options.tolerance, "is out of range", "0 to 1, 1 excluded")
    job = collate(read_directory(options.traces), options.tolerance)
    command_tables.show(command_tables.collation_tables(job))
    hangs = any(problem.hangs for problem in job.order_problems)
    wrong = hangs or any(not mismatch.guessed for mismatch in job.mismatches)
    return IMPOSSIBLE_LAUNCHES if wrong else OK


def export(arguments: Sequence[str]) -> int:
    """``trainscout trace export``."""
    parser = command_parser(
        "trace export",
        "Write traces in other programs' formats.",
        "trainscout trace export traces --perfetto job.json.gz\n"
        "trainscout trace export traces --chakra chakra --ranks 0,8-15",
    )
    parser.add_argument("traces", type=Path, metavar="DIR|FILE")
    formats = parser.add_mutually_exclusive_group(required=True)
    formats.add_argument("--perfetto", type=Path, metavar="FILE", help="Chrome JSON; .gz packs it")
    formats.add_argument(
        "--chakra", type=Path, metavar="DIR", help="MLCommons Chakra execution traces"
    )
    parser.add_argument(
        "--ranks", metavar="R[,R...]", help="ranks to write, as 0,8-15, or all (default: traced)"
    )
    options = parser.parse_args(arguments)
    traces = (
        read_directory(options.traces)
        if options.traces.is_dir()
        else (read_trace(options.traces),)
    )
    if options.perfetto is not None:
        from .perfetto import write_perfetto

        check_output("--perfetto", options.perfetto, [options.traces])
        write_perfetto(options.perfetto, _chosen(options, traces), option="--perfetto")
        return OK
    from .chakra.write import write_chakra

    job = collate(traces)
    write_chakra(options.chakra, job, _ranks(options, job), option="--chakra")
    return OK


def _chosen(options: argparse.Namespace, traces: Sequence[Trace]) -> list[Trace]:
    """Traces of the ranks asked for, all of which must have been traced."""
    if options.ranks is None or options.ranks == ALL:
        return list(traces)
    by_rank = {trace.header.rank: trace for trace in traces}
    ranks = parse_ranks("--ranks", options.ranks, traces[0].header.world_size)
    for rank in ranks:
        if rank not in by_rank:
            raise InputError("--ranks", rank, "was not traced", ", ".join(map(str, by_rank)))
    return [by_rank[rank] for rank in ranks]


def _ranks(options: argparse.Namespace, job: Collated) -> Sequence[int]:
    if options.ranks is None:
        return tuple(job.classes.first_of)
    if options.ranks == ALL:
        return range(job.world_size)
    return parse_ranks("--ranks", options.ranks, job.world_size)
