"""Variables of the environment that change how a job runs, under every framework.

Defaults are those of NCCL's list of environment variables and of Transformer Engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
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
# Without both, Transformer Engine writes its scores to memory.
_KERNELS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
VARIABLES = (
    *(flag.name for flag in _FLAGS.values()),
    *(COLLNET_VARIABLE, _ALLOCATOR, _BLOCKING, _QUEUES),
    *_WAITING,
)
FAMILIES = ("NCCL_", "NVTE_", "TORCH_NCCL_", "UB_")
"""What variables of libraries begin with: whatever a script sets of them is accounted for."""
_WITHOUT_EFFECT = (
    *("NCCL_DEBUG*", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_TIMEOUT"),
    *("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL"),
    *("*NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_DUMP_*"),
    *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_TRACE_*", "NVTE_DEBUG*"),
    *("NVTE_FRAMEWORK", "NVTE_CUDA_ARCHS"),
)
_AS_PREDICTED = {
    **dict.fromkeys(("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), ("0",)),
    **dict.fromkeys(("NCCL_PXN_DISABLE", COLLNET_VARIABLE, *_WAITING), ("0",)),
    **dict.fromkeys((*_KERNELS, "NVTE_UNFUSED_ATTN", "NVTE_TORCH_COMPILE", _QUEUES), ("1",)),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("1",),
    "NCCL_NVLS_ENABLE": ("1", "2"),
}
_INSTEAD = {
    "NCCL_NVLS_ENABLE": "NVLS sums where NCCL would choose it",
    "NCCL_IB_DISABLE": "the adapters of the cluster are used",
    "NCCL_IB_HCA": "cluster.nics_per_node= says how many adapters there are",
    "NCCL_P2P_DISABLE": "GPUs of a node use NVLink",
    "NVTE_FLASH_ATTN": "the best attention kernel of the GPU",
    "NVTE_FUSED_ATTN": "the best attention kernel of the GPU",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "attention need not be deterministic",
    _QUEUES: "communication starts as it does with 1",
}


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
    read = {*(flag.name for flag in _FLAGS.values()), _ALLOCATOR, _BLOCKING}
    read |= {COLLNET_VARIABLE, *_WAITING, *(_KERNELS if writes_scores(environment) else ())}
    for name, value in environment.items():
        usual = value in _AS_PREDICTED.get(name, ())
        if usual or any(fnmatchcase(name, pattern) for pattern in _WITHOUT_EFFECT):
            options.without_effect.append(f"{name}={value}")
        elif name not in read:
            options.assume(f"{name}={value}", _INSTEAD.get(name, "it is not set"))
    return fields


def writes_scores(environment: Mapping[str, str]) -> bool:
    """Whether Transformer Engine is left no fused attention kernel."""
    return all(environment.get(name) == "0" for name in _KERNELS)


def software_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a framework that variables say something of."""
    requested = {
        "expandable_segments": "expandable_segments:true"
        in environment.get(_ALLOCATOR, "").lower(),
        "launch_blocking": environment.get(_BLOCKING) == "1",
    }
    return {name: True for name, is_requested in requested.items() if is_requested}
