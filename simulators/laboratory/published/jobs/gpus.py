"""From the GPU a row names to the declared one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from trainscout.simulators.laboratory.published.reading.rows import Row, given
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.question.gpu import Gpu, gpus_called

from .outcome import CannotReplayError

# Makers' and drivers' figures of one board differ by less.
_OTHER_BOARD = 0.15
_DESKTOP_PAIR = 2


def gpu_of(label: str, gpus: Mapping[str, Gpu]) -> tuple[Gpu, tuple[str, ...]]:
    """The declared GPU that ``label`` names, and what was assumed to get there.

    Its ``published_as`` says what labels call it; of one that says nothing, its name.

    Raises:
        CannotReplayError: for a GPU that is not declared, or a label that fits several.
    """
    plain = label.lower().replace("_", "-")
    if "power" in plain:
        raise CannotReplayError(f"{label}: a lowered power limit is not modelled")
    if re.search(r"\bmig\b|\b\dg\.\d+gb", plain):
        raise CannotReplayError(f"{label}: a slice of a GPU is not modelled")
    if re.search(r"\w\d+/\w+\d", plain):
        raise CannotReplayError(f"{label}: which GPU it was is not published")
    names = gpus_called(label, gpus)
    if len(names) > 1:
        raise CannotReplayError(f"{label}: may be any of {', '.join(names)}")
    if not names:
        raise CannotReplayError(f"{label}: no such GPU is declared in conf/gpu")
    gpu = gpus[names[0]]
    if gpu.name == plain:
        return gpu, ()
    published = re.search(r"(\d+) ?gi?b\b", plain)
    if published and abs(int(published[1]) * 2**30 / gpu.memory_bytes - 1) > _OTHER_BOARD:
        size = f"{published[1]} GB, not {gpu.memory_bytes / 2**30:.0f} GiB"
        return gpu, (f"another board than {gpu.name} ({size}): clocks, memory and power are its",)
    if gpu.published_as and not re.search(r"\d ?g", plain):
        size = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        return gpu, (f"memory size of the GPU not published: {size}",)
    return gpu, ()


def with_desktop_lanes(
    gpu: Gpu, row: Row, num_gpus: int, statement: Statement
) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU with half of its PCIe lanes where two boards of one desktop are all that a job has,
    unless it says that each has 16: processors of desktops have 16 for graphics (AMD's of sockets
    AM4 and AM5, Intel's of LGA 1200 and 1700), which boards of two slots share."""
    pair = num_gpus == _DESKTOP_PAIR and given(row.gpus_per_node, num_gpus) > 1
    if not (gpu.pcie_staged and pair) or statement.says("lanes", "16"):
        return gpu, ()
    words = "PCIe lanes not published: 8 for each of two boards in a desktop"
    return replace(gpu, pcie_bytes_per_s=gpu.pcie_bytes_per_s / 2), (words,)
