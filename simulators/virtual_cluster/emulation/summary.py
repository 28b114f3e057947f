"""What a rank's run amounted to, in a few lines on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

_GIB = 2**30


@dataclass(frozen=True)
class RunFigures:
    """Wall and CPU seconds of the process, and the script's exit code."""

    wall_s: float
    cpu_s: float
    code: int


def show_summary(
    state: RankState, trace: Path, figures: RunFigures, findings: Sequence[Any]
) -> None:
    """Print the figures, values that were invented and what is wrong with the trace."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True, highlight=False)
    recorder = state.recorder
    allocated, reserved = state.memory.peaks()
    table = Table(title=f"rank {state.rank} of {state.world_size}, {state.gpu.name}", box=None)
    table.add_column("", style="bold")
    table.add_column("")
    rows = {
        "steps": str(recorder.finished_steps),
        "operations": f"{recorder.operations:,}",
        "communications": f"{recorder.collectives:,}",
        "peak memory": f"{allocated / _GIB:.2f} GiB allocated, "
        f"{reserved / _GIB:.2f} GiB reserved "
        f"of {state.capacity_bytes / _GIB:.2f}",
        "invented values": f"{sum(count for count, _, _ in recorder.inventions.values()):,}",
        "violations": f"{recorder.violations:,}",
        "time": f"{figures.wall_s:.1f} s, {figures.cpu_s:.1f} CPU s",
        "trace": str(trace),
    }
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)
    if recorder.inventions:
        console.print("invented (nobody knows them without computing; do not read results):")
        for (operation, site), (count, value, hint) in sorted(
            recorder.inventions.items(), key=lambda item: -item[1][0]
        )[:12]:
            where = recorder.sites.text(site)
            more = f"; {hint}" if hint else ""
            console.print(
                f"  {count} x {operation} = {str(value)[:40]} at {where}{more}", soft_wrap=True
            )
    shown = {(finding.invariant, finding.problem) for finding in findings}
    for kind, message, where in recorder.violation_texts[:12]:
        if (kind, message) not in shown:
            console.print(
                f"violation: {kind}: {message} ({where})", style="yellow", soft_wrap=True
            )
    for finding in findings:
        kind, style = ("broken invariant", "red") if finding.certain else ("warning", "yellow")
        console.print(f"{kind}: {finding}", style=style, soft_wrap=True)
    if findings:
        for site, made_of in recorder.empty_loaders.items():
            where = recorder.sites.text(site)
            console.print(f"the data loader at {where} gave no batch: {made_of}", soft_wrap=True)
