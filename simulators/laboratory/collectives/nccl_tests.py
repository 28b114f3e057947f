"""A fabric's curve out of the output of nccl-tests: ``trainscout collectives read --help``."""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from trainscout.simulators.predictor.collectives.measured import read_measured_collectives
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.question.cluster import MEASURED_KINDS
from trainscout.simulators.predictor.question.errors import (
    InputError,
    check_size,
    require_positive,
)

_TEST = re.compile(r"\b(\w+)_perf(?:_mpi)?\b")
_FILE = re.compile(r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)", re.IGNORECASE)
# As nccl-tests names its programs; what else it times has no place in a training step's curve.
_KINDS = {"alltoall": "all_to_all"} | {kind: kind for kind in MEASURED_KINDS}
_HEAD = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+(\d+)")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+.*?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+")
# Launchers put the rank before a line (Open MPI's [1,0]<stdout>:, srun's 0:), containers a time.
_ROW = re.compile(r"(?:^|[\s:>])(\d+)\s+\d+\s+(?:u?int\d+|half|float|double|bfloat16|f8e\w+)\s")
# Time, algorithm and bus bandwidth and wrong values, out of place and then in place.
_FIGURES = 8
_MOST_BYTES = 64 << 20
# A thread that drives several GPUs (-g) launches on one after another: 4.2 us each on five to
# eight A100 (NVIDIA/nccl-tests issue 123). Calls of so many times that tell of training: on six
# clusters of eight A100, H100 or H200 those of 1.5 to 3 times take 1.1 to 3.3 times as long in the
# median as with a thread for each GPU, on one all-to-alls 87 us up to 4 MiB.
_LAUNCH_US = 4.2
BEYOND_LAUNCHES = 3.0


def launches_us(gpus: int) -> float:
    """What one thread takes to launch a call on several GPUs; 0 on one, whose calls queue."""
    return _LAUNCH_US * gpus if gpus > 1 else 0.0


@dataclass(frozen=True)
class Timed:
    """One size of one test: bus bandwidth out of place in GB/s, on so many nodes and ranks."""

    kind: str
    nodes: int
    ranks: int
    bytes: int
    bus_gbs: float
    line: int


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    check_output("--output", options.output, options.outputs)
    if options.nodes is not None:
        require_positive("--nodes", options.nodes)
    found: list[Timed] = []
    notes: list[str] = []
    for path in options.outputs:
        timed, left = read_nccl_tests(path, options.nodes)
        found += timed
        notes += left
    source = ", ".join(path.name for path in options.outputs)
    each_node = sorted(
        {each.ranks // each.nodes for each in found if each.ranks and each.nodes > 1}
    )
    if len(each_node) > 1:
        problem = f"ran on {' and '.join(map(str, each_node))} GPUs a node"
        raise InputError("outputs", source, problem, "all GPUs of every node")
    text = measured_text(found, source)
    write_output("--output", options.output, text)
    rows = read_measured_collectives(options.output, "--output")
    counts = sorted({row.nodes for row in rows})
    kinds = ", ".join(sorted({row.kind for row in rows}))
    # Nobody tells an output how many more a node has.
    ran = f" (GPUs a node: {each_node[0]}, taken for all it has)" if each_node else ""
    notes.append(
        f"{len(rows)} sizes of {kinds} over {', '.join(map(str, counts))} nodes{ran}. "
        f"Written to {options.output}; use it with cluster.measured_collectives={options.output}"
    )
    show_text("".join(f"{note}\n" for note in notes))
    return OK


def read_nccl_tests(path: Path, nodes: int | None = None) -> tuple[list[Timed], list[str]]:
    """Every size that an output (of one test or several) has, and what was left out.

    Args:
        nodes: how many nodes ran it, where the output does not list its ranks' hosts.

    Raises:
        InputError: for an output without any, or of which the collective or the number of nodes
            is not known; with the line.
    """
    timed: list[Timed] = []
    left: list[str] = []
    # Outputs that do not name their test may be named by it.
    test = _named_file(path.stem) or _named(path.stem)
    hosts: dict[int, str] = {}
    unknown: set[str] = set()
    done, driven = False, 1
    launched: list[int] = []
    for number, line in _lines(path):
        if head := _HEAD.search(line):
            hosts, done, driven = {} if done else hosts, False, int(head[1])
        if name := _named(line):
            test = name
        if rank := _RANK.search(line):
            hosts[int(rank[1])] = rank[2]
        if not (row := _ROW.search(line)):
            continue
        figures = line.split()[-_FIGURES:]
        size, bus = int(row[1]), _number(figures[2] if len(figures) == _FIGURES else "")
        if bus is None:
            continue
        done = True
        if test is None:
            problem = f"does not say which collective line {number} is of"
            raise InputError("outputs", path, problem, "the line with the command, or its name")
        if test not in _KINDS:
            unknown.add(test)
            continue
        over = len(set(hosts.values())) or nodes
        if over is None:
            problem = f"does not say on how many nodes line {number} ran"
            raise InputError("outputs", path, problem, "--nodes N")
        if len(hosts) % over:
            problem = f"has {len(hosts)} ranks on {over} nodes before line {number}"
            raise InputError("outputs", path, problem, "as many ranks on every node")
        # Until 2021 there stood the largest difference, which rounding makes, instead of a number.
        if (_number(figures[3]) or 0) >= 1:
            left.append(f"{path.name}, line {number}: wrong results, left out")
        elif size and (_number(figures[0]) or 0) < BEYOND_LAUNCHES * launches_us(driven):
            launched.append(number)
        elif size and bus:
            timed.append(Timed(_KINDS[test], over, len(hosts), size, bus, number))
    if launched:
        left.append(
            f"{path.name}, line {launched[0]} on: {len(launched)} sizes take less than "
            f"{BEYOND_LAUNCHES:g} times what one thread takes to launch on its GPUs (-g), left "
            "out: mpirun, -g 1 time short calls"
        )
    left += [f"{path.name}: {name}_perf has no place in a curve, left out" for name in unknown]
    if not timed:
        why = f" ({left[0]})" if left else ""
        problem = f"has no row of nccl-tests that can be used{why}"
        raise InputError("outputs", path, problem, MEASURED_KINDS)
    return timed, left


_COLUMNS = (
    *("collective", "nodes", "gpus", "bytes"),
    *("bus_GBps", "band_high_GBps", "band_low_GBps", "source"),
)


def measured_text(found: Sequence[Timed], source: str) -> str:
    """A table as ``cluster.measured_collectives`` reads it; what was timed several times is the
    median, with its band."""
    sizes: dict[tuple[str, int, int, int], list[Timed]] = defaultdict(list)
    for each in found:
        gpus = each.ranks if each.nodes == 1 else 0
        sizes[each.kind, each.nodes, gpus, each.bytes].append(each)
    rows = []
    for (kind, nodes, gpus, size), timed in sorted(sizes.items()):
        rates = [each.bus_gbs for each in timed]
        ends = (f"{rate:.6g}" for rate in (median(rates), max(rates), min(rates)))
        origin = f"{source}; {timed[0].ranks} ranks" if timed[0].ranks else source
        rows.append(
            dict(zip(_COLUMNS, (kind, nodes, gpus or "", size, *ends, origin), strict=True))
        )
    return csv_text(_COLUMNS, rows)


def _named(text: str) -> str | None:
    """The last test that a text names: a command has its own name last."""
    tests = _TEST.findall(text)
    return tests[-1].lower() if tests else None


def _named_file(stem: str) -> str | None:
    named = _FILE.search(stem)
    kinds = {kind.replace("_", ""): kind for kind in MEASURED_KINDS}
    return None if named is None else kinds[named[1].replace("_", "").lower()]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        check_size("outputs", path, _MOST_BYTES)
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from enumerate(file, 1)
    except OSError as error:
        raise InputError("outputs", path, f"cannot be read: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "collectives read",
        "Make a table of measured collectives out of the output of nccl-tests: all_reduce_perf, "
        "all_gather_perf, reduce_scatter_perf and alltoall_perf, over any number of whole nodes.",
        "trainscout collectives read nccl-*.txt --output ours.csv\n"
        "trainscout collectives read all_reduce.txt --nodes 4 --output ours.csv\n"
        "trainscout optimize model=llama3_8b cluster=h100_64 \\\n"
        "    cluster.measured_collectives=ours.csv",
    )
    parser.add_argument("outputs", type=Path, nargs="+", help="what the tests printed")
    parser.add_argument("--output", type=Path, required=True, help="where to write the table")
    parser.add_argument(
        "--nodes", type=int, help="how many nodes ran them, where outputs list no ranks"
    )
    return parser
