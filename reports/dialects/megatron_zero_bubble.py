"""Settings of Megatron-LM's fork with schedules that split backward passes (sail-sg's
zero-bubble-pipeline-parallelism, 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainscout.reports.dialects.options import Options
from trainscout.reports.dialects.setting import Setting, Value
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import schedule_kind

_V, _MEMORY = "--zero-bubble-v-schedule", "--zero-bubble-v-schedule-mem-setup"
_ENABLE, _PENDING = "--enable-zero-bubble", "--zero-bubble-max-pending-backward"
_SETUPS = {"zb-v": "zb", "v-half": "half", "v-min": "min"}
# Micro-batches whose backward pass is pending, in pipeline stages.
_PENDING_STAGES = {"zb-h1": 1, "zb-h2": 2}
# What it has no name for.
UNNAMED = ("gpipe", "dualpipe", "dualpipe-v")


def is_v_shaped(job: Job) -> bool:
    """Whether its V of two chunks a stage runs, which is no interleaving."""
    return schedule_kind(job.schedule).v_shaped


def _of(made: Callable[[str], Value]) -> Callable[[Job], Value]:
    return lambda job: made(job.schedule)


ARGUMENTS = (
    Setting(_ENABLE, _of(lambda name: schedule_kind(name).splits_backward)),
    Setting(_PENDING, lambda job: _PENDING_STAGES.get(job.schedule, 0) * job.recipe.pp or None),
    Setting(_V, _of(lambda name: name in _SETUPS)),
    Setting(_MEMORY, _of(_SETUPS.get)),
    Setting(
        "--enable-optimizer-post-validation", _of(lambda name: schedule_kind(name).unsynchronised)
    ),
)


def read_schedule(options: Options, pp: int) -> dict[str, Any]:
    """The fields of a recipe that options of the fork say, if any are given."""
    validates = options.has("--enable-optimizer-post-validation")
    enabled, pending = options.has(_ENABLE), options.whole(_PENDING)
    setup = options.text(_MEMORY, tuple(_SETUPS.values())) or "zb"
    if options.has(_V):
        if validates:
            options.assume("--enable-optimizer-post-validation", "stages wait for each other")
        (schedule,) = (name for name, value in _SETUPS.items() if value == setup)
        return {"schedule": schedule, "vpp": 2} if pp > 1 else {}
    if not enabled or pp == 1:
        return {}
    twice = pending is not None and pending >= 2 * pp
    if twice != validates:
        what = "zb-h2, which goes with post-validation" if twice else "stages wait for each other"
        options.assume(f"{_PENDING} {pending}, post-validation: {validates}", what)
    return {"schedule": "zb-h2" if twice else "zb-h1"}
