"""``trainscout trace``: look at traces of ranks, put them together, convert them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainscout.simulators.predictor.io.command_line import exit_code
from trainscout.simulators.predictor.io.output import check_output
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.collate import Collated, collate, told_ranks
from trainscout.simulators.virtual_cluster.traces.collate.classes import TOLERANCE
from trainscout.simulators.virtual_cluster.traces.events import Trace
from trainscout.simulators.virtual_cluster.traces.files import read_directory, read_trace

WRONG_INPUT, DOES_NOT_FIT = 2, 4
ALL = "all"
_EPILOG = """\
A trace is what one rank did, as trainscout run writes it: a directory holds
rank_00000.trace.gz and the like. Reading traces needs no torch.

examples:
  trainscout trace show traces/rank_00000.trace.gz
  trainscout trace collate traces
  trainscout trace export --help

exit codes: 0 done; 2 wrong input; 4 launches of different ranks do not fit each other;
130 interrupted
"""


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    made = argparse.ArgumentParser(
        prog="trainscout trace",
        description="Look at traces of ranks, put them together, convert them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("show", help="what a trace amounts to")
    shown.add_argument("trace", type=Path, metavar="FILE")
    shown.set_defaults(run=_show)

    collated = commands.add_parser(
        "collate", help="put a job together: classes of ranks, what meets, what does not fit"
    )
    collated.add_argument("traces", type=Path, metavar="DIR")
    collated.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="SHARE",
        help="how much work around the schedule may differ within a class (default %(default)s)",
    )
    collated.set_defaults(run=_collate)

    exported = commands.add_parser("export", help="write traces in other programs' formats")
    exported.add_argument("traces", type=Path, metavar="DIR|FILE")
    formats = exported.add_mutually_exclusive_group(required=True)
    formats.add_argument("--perfetto", type=Path, metavar="FILE", help="Chrome JSON; .gz packs it")
    formats.add_argument(
        "--chakra", type=Path, metavar="DIR", help="MLCommons Chakra execution traces"
    )
    exported.add_argument(
        "--ranks", metavar="R[,R...]", help="ranks to write, as 0,8-15, or all (default: traced)"
    )
    exported.set_defaults(run=_export)

    profiled = commands.add_parser("kineto", help="time by class of a profile of a real GPU")
    profiled.add_argument("profile", type=Path, metavar="FILE")
    profiled.add_argument(
        "--predicted",
        type=Path,
        metavar="FILE",
        help="compare with this Perfetto file of a replay",
    )
    profiled.add_argument(
        "--rank", type=int, default=0, metavar="R", help="the rank in it (default 0)"
    )
    profiled.set_defaults(run=_kineto)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    given = parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except InputError as error:
        print(error, file=sys.stderr)
        return WRONG_INPUT


def _show(given: argparse.Namespace) -> int:
    from trainscout.simulators.virtual_cluster.traces.summary import summarise
    from trainscout.simulators.virtual_cluster.traces.tables import show, summary_tables

    trace = read_trace(given.trace)
    show(summary_tables(trace.header, summarise(trace)))
    return 0


def _collate(given: argparse.Namespace) -> int:
    from trainscout.simulators.virtual_cluster.traces.tables import collation_tables, show

    if not 0 <= given.tolerance < 1:
        raise InputError("--tolerance", given.tolerance, "is out of range", "0 to 1, 1 excluded")
    job = collate(read_directory(given.traces), given.tolerance)
    show(collation_tables(job))
    hangs = any(problem.hangs for problem in job.order_problems)
    return DOES_NOT_FIT if job.mismatches or hangs else 0


def _export(given: argparse.Namespace) -> int:
    traces = read_directory(given.traces) if given.traces.is_dir() else (read_trace(given.traces),)
    if given.perfetto is not None:
        from trainscout.simulators.virtual_cluster.traces.perfetto import write_perfetto

        check_output("--perfetto", given.perfetto, [given.traces])
        write_perfetto(given.perfetto, _chosen(given, traces), option="--perfetto")
        return 0
    from trainscout.simulators.virtual_cluster.traces.chakra import write_chakra

    job = collate(traces)
    write_chakra(given.chakra, job, _ranks(given, job), option="--chakra")
    return 0


def _chosen(given: argparse.Namespace, traces: Sequence[Trace]) -> list[Trace]:
    """Traces of the ranks asked for, all of which must have been traced."""
    if given.ranks is None or given.ranks == ALL:
        return list(traces)
    by_rank = {trace.header.rank: trace for trace in traces}
    ranks = told_ranks("--ranks", given.ranks, traces[0].header.world_size)
    for rank in ranks:
        if rank not in by_rank:
            raise InputError("--ranks", rank, "was not traced", ", ".join(map(str, by_rank)))
    return [by_rank[rank] for rank in ranks]


def _ranks(given: argparse.Namespace, job: Collated) -> Sequence[int]:
    if given.ranks is None:
        return tuple(job.classes.first_of)
    if given.ranks == ALL:
        return range(job.world_size)
    return told_ranks("--ranks", given.ranks, job.world_size)


def _kineto(given: argparse.Namespace) -> int:
    from trainscout.simulators.virtual_cluster.traces.comparison import (
        busy,
        compare,
        measured_times,
        read_predicted,
    )
    from trainscout.simulators.virtual_cluster.traces.kineto import read_kineto
    from trainscout.simulators.virtual_cluster.traces.tables import (
        comparison_table,
        profile_tables,
        show,
    )

    profile = read_kineto(given.profile)
    times = measured_times(profile)
    parts = profile_tables(profile, times, busy(profile))
    if given.predicted is not None:
        predicted, steps = read_predicted("--predicted", given.predicted, given.rank)
        parts.append(comparison_table(compare(times, max(profile.steps, 1), predicted, steps)))
    show(parts)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
