"""``trainscout``: one command in front of all others."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

_LABORATORY = "trainscout.simulators.laboratory"
_VIRTUAL_CLUSTER = "trainscout.simulators.virtual_cluster"

COMMANDS = {
    ("optimize",): "trainscout.commands.optimize",
    ("simulate",): "trainscout.commands.simulate",
    ("explain",): "trainscout.commands.explain",
    ("plan",): "trainscout.commands.plan",
    ("validate",): f"{_LABORATORY}.validate",
    ("calibrate",): f"{_LABORATORY}.calibrate",
    ("residuals",): f"{_LABORATORY}.residuals",
    ("accuracy",): f"{_LABORATORY}.accuracy",
    ("kernels", "fit"): f"{_LABORATORY}.kernels.fit",
    ("kernels", "measure"): f"{_LABORATORY}.kernels.measure",
    ("kernels", "validate"): f"{_LABORATORY}.kernels.validate",
    ("collectives", "fit"): f"{_LABORATORY}.collectives.fit",
    ("collectives", "validate"): f"{_LABORATORY}.collectives.validate",
    ("interference", "fit"): f"{_LABORATORY}.interference.fit",
    ("interference", "measure"): f"{_LABORATORY}.interference.measure",
    ("network", "train"): f"{_LABORATORY}.network.train",
    ("moe",): "trainscout.simulators.predictor.moe",
    ("trace", "replay"): f"{_VIRTUAL_CLUSTER}.execution",
    ("trace",): f"{_VIRTUAL_CLUSTER}.traces",
    ("tracking",): "trainscout.optimizer.tracking",
}
"""The words of each command, and the module that runs it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command as ``python -m`` runs its module."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["run"], ["live"]):
        module, taken = f"{_VIRTUAL_CLUSTER}.emulation", 0
    else:
        found = next((key for key in COMMANDS if tuple(words[: len(key)]) == key), None)
        if found is None:
            print(f"error: no such command: {' '.join(words[:2])}", file=sys.stderr)
            return 2
        module, taken = COMMANDS[found], len(found)
    sys.argv = ["trainscout", *words[taken:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
