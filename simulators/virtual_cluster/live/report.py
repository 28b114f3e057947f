"""What a live run reports at its end: times of every rank, what was invented, what it took."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown, listed
from trainscout.simulators.virtual_cluster.traces.chrome import chrome_file

from .clock import PICOSECONDS
from .messages import Figures
from .server import Measured
from .simulation import Simulation
from .tasks import Step

_GIB = 2**30
# Two updates that do the same differ by what ranks wait for each other.
_ALIKE = 0.02
# Room for every column where output is no terminal.
_TABLE_WIDTH = 110


@dataclass(frozen=True)
class StepTimes:
    """One rank's step in seconds: from the end of the work before to the end of its own.

    Where its device's time went: kernels, communication that no kernel ran beside, the same while
    it waited for other ranks, and nothing at all: waiting for the host.
    """

    number: int
    seconds: float
    kernels_s: float
    transfers_s: float
    peers_s: float

    @property
    def idle_s(self) -> float:
        busy_s = self.kernels_s + self.transfers_s + self.peers_s
        return max(0.0, self.seconds - busy_s)


def step_times(steps: Sequence[Step]) -> list[StepTimes]:
    """A rank's training steps; what comes before the first and after the last is left out."""
    found = []
    for before, step in itertools.pairwise(steps):
        if step.end_ps is None or not step.trains:
            continue
        begin_ps = step.start_ps if before.number < 0 else before.end_ps or step.start_ps
        parts = (step.end_ps - begin_ps, step.kernels_ps, step.transfers_ps, step.peers_ps)
        found.append(StepTimes(step.number, *(part / PICOSECONDS for part in parts)))
    return found


def updates_that_repeat(seconds: Sequence[float]) -> int:
    """After how many updates a rank's take as long again, the first, which also sets up, left out:
    1 where all are alike, 0 where they repeat nothing that was run twice."""
    later = np.array(seconds[1:])
    for every in range(1, len(later) // 2 + 1):
        if np.allclose(later[every:], later[:-every], rtol=_ALIKE):
            return every
    return 0


def _own(figures: Figures) -> tuple[str, ...]:
    return (
        f"{figures.peak_allocated_bytes / _GIB:.2f}",
        f"{figures.peak_reserved_bytes / _GIB:.2f}",
        f"{figures.cpu_s:.1f}",
        f"{figures.own_bytes / 2**20:,.0f}",
    )


def show_report(simulation: Simulation, measured: Measured) -> None:
    """Print the table of ranks, the unknown values and the run's cost on standard error."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.width = max(console.width, _TABLE_WIDTH)
    table = Table(title="last step by rank, simulated", box=None)
    columns = "rank|steps|step ms|kernels|exposed comm|peers|host|peak GiB|reserved|CPU s|own MiB"
    for name in columns.split("|"):
        table.add_column(name, justify="right")
    for rank, host in simulation.hosts.items():
        steps, figures = step_times(host.steps), measured.figures.get(rank)
        last = steps[-1] if steps else StepTimes(0, 0.0, 0.0, 0.0, 0.0)
        shares = (last.kernels_s, last.transfers_s, last.peers_s, last.idle_s)
        table.add_row(
            str(rank),
            str(len(steps)),
            f"{1e3 * last.seconds:,.3f}",
            *(f"{share / last.seconds:.1%}" if last.seconds else "" for share in shares),
            *(() if figures is None else _own(figures)),
        )
    console.print(table)
    slowest = max((step_times(host.steps) for host in simulation.hosts.values()), key=_total_s)
    every = updates_that_repeat([step.seconds for step in slowest])
    if every > 1:
        together_ms = 1e3 * _total_s(slowest[-every:])
        console.print(
            f"every {every} updates of parameters repeat: {together_ms:,.3f} ms together, "
            f"{together_ms / every:,.3f} ms in the mean"
        )
    clocks = [host.clock for host in simulation.hosts.values()]
    for words in dict.fromkeys(clock.cost.words(simulation.asked) for clock in clocks):
        console.print(words)
    show_unknown(measured.unknown)
    ranks_cpu_s = sum(figures.cpu_s for figures in measured.figures.values())
    console.print(
        f"simulated {max(clock.now_s for clock in clocks):.3f} s in "
        f"{measured.wall_s:.1f} s: {ranks_cpu_s:.1f} CPU s of ranks, "
        f"{measured.simulation_cpu_s:.1f} of the simulation"
    )


def _total_s(steps: Sequence[StepTimes]) -> float:
    return sum(step.seconds for step in steps)


def show_unknown(values: Sequence[Unknown]) -> None:
    """Print on standard error what ranks went on with that nobody knew."""
    if lines := listed(values):
        head = "[*] values that nobody knows without computing; what is made of them, losses\n"
        body = "".join(f"    {line}\n" for line in lines)
        sys.stderr.write(f"{head}    above all, means nothing:\n{body}")


def write_timeline(path: Path, simulation: Simulation) -> None:
    """The run as a Chrome trace: a process for each rank, a thread for each stream."""
    slices = simulation.slices or []
    threads: dict[tuple[int, str], int] = {}
    with chrome_file("--perfetto", path) as trace:
        for rank in simulation.hosts:
            trace.process(rank, f"rank {rank}")
        for each in sorted(slices, key=lambda one: (one.rank, one.lane, one.start_ps)):
            thread = threads.get((each.rank, each.lane))
            if thread is None:
                thread = threads[each.rank, each.lane] = len(threads)
                trace.thread(each.rank, thread, each.lane)
            trace.slice(
                each.name,
                each.rank,
                thread,
                each.start_ps / PICOSECONDS,
                each.end_ps / PICOSECONDS,
                {"step": each.step},
            )
