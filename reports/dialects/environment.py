"""Variables of the environment that change how a job runs, under every framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainscout.reports.dialects.options import Options
from trainscout.simulators.predictor.question.cluster import COLLNET_VARIABLE
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import ENVIRONMENT
from trainscout.simulators.predictor.question.recipe import KNOBS

_FLAGS = {
    name: knob.flags[ENVIRONMENT] for name, knob in KNOBS.items() if ENVIRONMENT in knob.flags
}
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
# PyTorch's process group then sleeps until each collective is done, a millisecond between looks.
_WAITING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
VARIABLES = (
    *(flag.name for flag in _FLAGS.values()),
    *(COLLNET_VARIABLE, _ALLOCATOR, _BLOCKING),
    *_WAITING,
)


def write_environment(job: Job) -> dict[str, str]:
    """What the recipe and the declared software ask of NCCL and PyTorch."""
    environment = {}
    for name, flag in _FLAGS.items():
        value = getattr(job.network, name)
        if value is not None:
            environment[flag.name] = str(value if flag.values is None else flag.values[value])
    if job.cluster.sharp:
        environment[COLLNET_VARIABLE] = "1"
    if job.framework.expandable_segments:
        environment[_ALLOCATOR] = "expandable_segments:True"
    if job.framework.launch_blocking:
        environment[_BLOCKING] = "1"
    return environment


def read_environment(environment: Mapping[str, str], options: Options) -> dict[str, Any]:
    """The knobs that variables say something of."""
    fields: dict[str, Any] = {}
    for name, flag in _FLAGS.items():
        text = environment.get(flag.name, "")
        if flag.values is None and text.isdigit():
            fields[name] = int(text)
        elif flag.values is not None and text in flag.values.values():
            fields[name] = next(ours for ours, theirs in flag.values.items() if theirs == text)
        elif flag.values is not None and text:
            options.assume(f"{flag.name}={text}", "NCCL chooses its algorithms")
    if environment.get(COLLNET_VARIABLE) == "1":
        options.assume(f"{COLLNET_VARIABLE}=1", "cluster.sharp= says whether switches sum")
    for name in _WAITING:
        if environment.get(name) == "1":
            options.assume(f"{name}=1", "the host launches ahead of collectives, which is faster")
    return fields


def software_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a framework that variables say something of."""
    requested = {
        "expandable_segments": "expandable_segments:true"
        in environment.get(_ALLOCATOR, "").lower(),
        "launch_blocking": environment.get(_BLOCKING) == "1",
    }
    return {name: True for name, is_requested in requested.items() if is_requested}
