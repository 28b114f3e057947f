"""Import of what PyTorch's profiler recorded on a GPU: Kineto's Chrome trace, as timed kernels.

The profiler writes CPU operations (``cat: cpu_op``, with ``Input Dims`` when shapes were
recorded), CUDA calls (``cuda_runtime``, ``cuda_driver``) and device work (``kernel``,
``gpu_memcpy``, ``gpu_memset``). Device work names the operation that launched it by
``External id``, or the call by ``correlation``. NCCL kernels carry what ``record_param_comms``
knew: the collective, its sizes in elements, dtype and group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.chrome import read_chrome, slices
from trainscout.simulators.virtual_cluster.traces.kernel_classes import class_of_kernel

FIELD = "kineto"
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
_MOST = 1e30
STEP_PREFIX = "ProfilerStep#"
# Of the dtypes that NCCL kernels name (c10's scalar types).
ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Short": 2, "Half": 2,
    "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What an NCCL kernel carried out. ``ranks``: of its group, empty when not recorded."""

    kind: str
    bytes_in: int
    bytes_out: int
    dtype: str
    group: str
    group_size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """Device work that was measured. Times in seconds from the first of the file.

    ``operation`` launched it (``aten::mm``; None when unknown), with inputs of these ``shapes``
    (empty for what is no tensor) and ``dtypes``; both are empty when shapes were not recorded.
    ``bytes`` are those of a copy. ``collective`` is set for NCCL kernels that carry their call.
    """

    name: str
    kernel_class: str
    stream: int
    start_s: float
    duration_s: float
    operation: str | None
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    bytes: int | None = None
    collective: CollectiveCall | None = None

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s


@dataclass(frozen=True)
class KinetoTrace:
    """One rank's profile: its device work in order of start.

    ``gpu``: the device's name, ``rank`` and ``world_size``: None when not recorded; ``steps``: how
    many steps the profiler was given.
    """

    gpu: str | None
    rank: int | None
    world_size: int | None
    steps: int
    kernels: tuple[TimedKernel, ...]


@dataclass(frozen=True)
class _Operation:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    call: CollectiveCall | None


def read_kineto(path: Path) -> KinetoTrace:
    """Read a profile, ``.json`` or ``.json.gz``.

    Raises:
        InputError: as ``read_chrome``, and when an event lacks what its category has.
    """
    top = read_chrome(FIELD, path)
    events = slices(top)
    operations = _operations(path, events)
    launched_by = _launches(events)
    work = [event for event in events if event.get("cat") in DEVICE_WORK]
    starts = [_number(path, event, "ts") for event in work]
    origin_us = min(starts, default=0.0)
    kernels = [
        _kernel(path, event, start - origin_us, operations, launched_by)
        for event, start in zip(work, starts, strict=True)
    ]
    about = top.get("distributedInfo")
    about = about if type(about) is dict else {}
    return KinetoTrace(
        _device_name(top),
        _optional_integer(about.get("rank")),
        _optional_integer(about.get("world_size")),
        len({str(event["name"]) for event in events if _is_step(event)}),
        tuple(sorted(kernels, key=lambda kernel: kernel.start_s)),
    )


def _is_step(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "user_annotation" and str(event.get("name")).startswith(STEP_PREFIX)


def _device_name(top: Mapping[str, Any]) -> str | None:
    devices = top.get("deviceProperties")
    if type(devices) is list and devices and type(devices[0]) is dict:
        name = devices[0].get("name")
        return name if type(name) is str else None
    return None


def _operations(path: Path, events: list[dict[str, Any]]) -> dict[int, _Operation]:
    """CPU operations by External id; an NCCL call is kept with the operation that made it."""
    found: dict[int, _Operation] = {}
    for event in events:
        if event.get("cat") != "cpu_op":
            continue
        args = _arguments(path, event)
        number = args.get("External id")
        if type(number) is int:
            found[number] = _Operation(
                _name(path, event),
                tuple([_shape(dims) for dims in _list(args.get("Input Dims"))]),
                tuple([str(each) for each in _list(args.get("Input type"))]),
                _collective(path, event, args),
            )
    return found


def _launches(events: list[dict[str, Any]]) -> dict[int, int]:
    """External ids of operations by the correlation of their CUDA calls."""
    found = {}
    for event in events:
        args = event.get("args")
        if event.get("cat") in LAUNCHES and type(args) is dict:
            correlation, external = args.get("correlation"), args.get("External id")
            if type(correlation) is int and type(external) is int:
                found[correlation] = external
    return found


def _kernel(
    path: Path,
    event: dict[str, Any],
    start_us: float,
    operations: Mapping[int, _Operation],
    launched_by: Mapping[int, int],
) -> TimedKernel:
    args = _arguments(path, event)
    name, duration_us = _name(path, event), _number(path, event, "dur")
    if duration_us < 0:
        raise _bad(path, event, f"dur is {duration_us}, below 0")
    external = args.get("External id")
    if type(external) is not int or external not in operations:
        correlation = args.get("correlation")
        external = launched_by.get(correlation, -1) if type(correlation) is int else -1
    operation = operations.get(external)
    copied = args.get("bytes")
    kind = "copy" if event["cat"] != "kernel" else None
    return TimedKernel(
        name,
        kind or class_of_kernel(name, operation.name if operation else None),
        _optional_integer(args.get("stream")) or 0,
        start_us * 1e-6,
        duration_us * 1e-6,
        operation.name if operation else None,
        operation.shapes if operation else (),
        operation.dtypes if operation else (),
        copied if type(copied) is int else None,
        _collective(path, event, args) or (operation.call if operation else None),
    )


def _collective(
    path: Path, event: Mapping[str, Any], args: Mapping[str, Any]
) -> CollectiveCall | None:
    kind = args.get("Collective name")
    if type(kind) is not str:
        return None
    elements_in = _optional_integer(args.get("In msg nelems"))
    elements_out = _optional_integer(args.get("Out msg nelems"))
    members = _optional_integer(args.get("Group size"))
    dtype = args.get("dtype")
    if elements_in is None or elements_out is None or members is None:
        # The grouping of calls has no sizes.
        return None
    if type(dtype) is not str or dtype not in ELEMENT_BYTES:
        raise _bad(path, event, f"dtype {dtype!r} is unknown")
    return CollectiveCall(
        kind,
        elements_in * ELEMENT_BYTES[dtype],
        elements_out * ELEMENT_BYTES[dtype],
        dtype,
        str(args.get("Process Group Description", args.get("Process Group Name", ""))),
        members,
        _ranks(path, event, args.get("Process Group Ranks")),
    )


def _ranks(path: Path, event: Mapping[str, Any], given: object) -> tuple[int, ...]:
    """``[0, 1, 2]`` as the profiler writes it, in a text; long lists are cut there (``...``)."""
    if given is None or given == "" or (type(given) is str and "..." in given):
        return ()
    try:
        ranks = json.loads(given) if type(given) is str else given
    except (ValueError, RecursionError):
        ranks = None
    if type(ranks) is not list or not all(type(rank) is int for rank in ranks):
        raise _bad(path, event, f"Process Group Ranks is {given!r}, not a list of ranks")
    return tuple(ranks)


def _shape(dims: object) -> tuple[int, ...]:
    return tuple([each for each in _list(dims) if type(each) is int])


def _list(value: object) -> list[Any]:
    return value if type(value) is list else []


def _optional_integer(value: object) -> int | None:
    return value if type(value) is int else None


def _arguments(path: Path, event: Mapping[str, Any]) -> dict[str, Any]:
    args = event.get("args", {})
    if type(args) is not dict:
        raise _bad(path, event, "args is no object")
    return args


def _name(path: Path, event: Mapping[str, Any]) -> str:
    name = event.get("name")
    if type(name) is not str:
        raise _bad(path, event, "has no name")
    return name


def _number(path: Path, event: Mapping[str, Any], field: str) -> float:
    value: Any = event.get(field)
    if type(value) not in (int, float) or not -_MOST < value < _MOST:
        raise _bad(path, event, f"{field} is {value!r}, not a number")
    return float(value)


def _bad(path: Path, event: Mapping[str, Any], problem: str) -> InputError:
    return InputError(FIELD, f"{path}: {event.get('name')!r} at {event.get('ts')!r}", problem)
