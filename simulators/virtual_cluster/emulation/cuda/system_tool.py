"""``nvidia-smi``, which scripts call for their logs: it shows the virtual GPUs of the node.

This file is the program, too: it needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

# One GPU's figures by their names in ``--query-gpu``, and how many there are.
_NODE = "TRAINSCOUT_NODE"
_MIB = 1 << 20


def install_system_tool(folder: Path, properties: Any, count: int, cuda_version: str) -> None:
    """Have programs that this process starts find ``nvidia-smi`` in ``folder``."""
    memory = f"{properties.total_memory // _MIB} MiB"
    figures = {
        "name": properties.name,
        "count": str(count),
        "memory.total": memory,
        "memory.free": memory,
        "memory.used": "0 MiB",
        "compute_cap": f"{properties.major}.{properties.minor}",
        "cuda_version": cuda_version,
    }
    os.environ[_NODE] = json.dumps(figures)
    program = folder / "nvidia-smi"
    words = shlex.join((sys.executable, "-I", "-S", __file__))
    text = f'#!/bin/sh\nexec {words} "$@"\n'
    if not program.exists() or program.read_text() != text:
        folder.mkdir(parents=True, exist_ok=True)
        # Ranks may start at the same time.
        own = folder / f"nvidia-smi.{os.getpid()}"
        own.write_text(text)
        own.chmod(0o755)
        own.replace(program)
    places = os.environ.get("PATH", "").split(os.pathsep)
    if str(folder) not in places:
        os.environ["PATH"] = os.pathsep.join((str(folder), *places))


def shown(arguments: list[str], figures: dict[str, str]) -> list[str]:
    """The lines that it prints."""
    options = dict(each.partition("=")[::2] for each in arguments)
    if "-i" in arguments[:-1]:
        options["--id"] = arguments[arguments.index("-i") + 1]
    every = range(int(figures["count"]))
    chosen = [int(each) for each in options["--id"].split(",")] if "--id" in options else every
    if "-L" in options or "--list-gpus" in options:
        return [f"GPU {index}: {figures['name']} (UUID: GPU-{index})" for index in chosen]
    if "--query-gpu" in options:
        names = [each.strip() for each in options["--query-gpu"].split(",")]
        style = options.get("--format", "csv")
        lines = [] if "noheader" in style else [", ".join(names)]
        for index in chosen:
            row = {**figures, "index": str(index)}
            values = [row.get(name, "[N/A]") for name in names]
            if "nounits" in style:
                values = [each.removesuffix(" MiB") for each in values]
            lines.append(", ".join(values))
        return lines
    memory = f"{figures['memory.used']} / {figures['memory.total']}"
    return [
        f"NVIDIA-SMI   Driver Version: [N/A]   CUDA Version: {figures['cuda_version']}",
        *(f"| {index}  {figures['name']} | {memory} |" for index in chosen),
    ]


if __name__ == "__main__":
    print("\n".join(shown(sys.argv[1:], json.loads(os.environ[_NODE]))))
