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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

from .chrome import read_chrome, slices
from .kernel_classes import class_of_kernel

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
class RecordedOperation:
    """A call of PyTorch's dispatcher (``aten::mm``), ``number`` among the profile's.

    By argument: ``shapes`` and ``strides`` in elements (empty for what is no tensor), ``dtypes``
    as the profiler writes them, ``values`` of what is no tensor, as text. All are empty when
    shapes were not recorded; a list of tensors has a shape for each in ``lists``, by argument.
    """

    name: str
    number: int
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    values: tuple[str, ...] = ()
    lists: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """Device work that was measured. Times in seconds from the first of the file.

    ``recorded`` launched it (None when that was not recorded), at ``launched_s`` on the host's
    clock (None: not in the profile, as what was in flight when it began), by ``thread``. ``bytes``
    are those of a copy. ``collective`` is set for NCCL kernels that carry their call.
    """

    name: str
    kernel_class: str
    stream: int
    start_s: float
    duration_s: float
    recorded: RecordedOperation | None
    launched_s: float | None
    bytes: int | None = None
    collective: CollectiveCall | None = None
    thread: int | None = None

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s

    @property
    def operation(self) -> str | None:
        """The name of what launched it."""
        return self.recorded.name if self.recorded else None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of what launched it, by argument."""
        return self.recorded.shapes if self.recorded else ()


@dataclass(frozen=True)
class KinetoTrace:
    """One rank's profile: its device work in order of start.

    ``gpu``: the device's name, ``rank`` and ``world_size``: None when not recorded; ``marks``:
    when the host began and ended each step that the profiler was told of; ``host_waits``: when it
    waited for the device.
    """

    gpu: str | None
    rank: int | None
    world_size: int | None
    marks: tuple[tuple[float, float], ...]
    kernels: tuple[TimedKernel, ...]
    host_waits: tuple[tuple[float, float], ...] = ()

    @property
    def steps(self) -> int:
        """How many steps are marked."""
        return len(self.marks)


@dataclass(frozen=True)
class _Calls:
    """What the host did: operations by number, the collectives among them; of launches, by
    correlation, which operation made them, when, and on which thread."""

    operations: Mapping[int, RecordedOperation]
    collectives: Mapping[int, CollectiveCall]
    launches: Mapping[int, tuple[int, float, int | None]]


def read_kineto(path: Path) -> KinetoTrace:
    """Read a profile, ``.json`` or ``.json.gz``.

    Raises:
        InputError: as ``read_chrome``, and when an event lacks what its category has.
    """
    top = read_chrome(FIELD, path)
    try:
        return _trace(top)
    except _UnusableError as error:
        raise InputError(FIELD, f"{path}: {error.event}", str(error)) from None


class _UnusableError(Exception):
    """An event lacks what its category has."""

    def __init__(self, event: Mapping[str, Any], problem: str) -> None:
        super().__init__(problem)
        self.event = f"{event.get('name')!r} at {event.get('ts')!r}"


def _trace(top: Mapping[str, Any]) -> KinetoTrace:
    events = slices(top)
    work = [event for event in events if event.get("cat") in DEVICE_WORK]
    starts = [_number(event, "ts") for event in work]
    origin_us = min(starts, default=0.0)
    calls = _Calls(*_operations(events), _launches(events, origin_us))
    kernels = [
        _kernel(event, start - origin_us, calls) for event, start in zip(work, starts, strict=True)
    ]
    about = top.get("distributedInfo")
    about = about if type(about) is dict else {}
    return KinetoTrace(
        _device_name(top),
        _optional_integer(about.get("rank")),
        _optional_integer(about.get("world_size")),
        _marks(events, origin_us),
        tuple(sorted(kernels, key=lambda kernel: kernel.start_s)),
        _host_waits(events, origin_us),
    )


def _span(event: Mapping[str, Any], origin_us: float) -> tuple[float, float]:
    start_s = (_number(event, "ts") - origin_us) * 1e-6
    return start_s, start_s + _number(event, "dur") * 1e-6


def _host_waits(events: list[dict[str, Any]], origin_us: float) -> tuple[tuple[float, float], ...]:
    found = [
        _span(event, origin_us)
        for event in events
        if event.get("cat") in LAUNCHES and "Synchronize" in str(event.get("name"))
    ]
    return tuple(sorted(found))


def _marks(events: list[dict[str, Any]], origin_us: float) -> tuple[tuple[float, float], ...]:
    """Each step once, by name: some profilers mark it on several threads."""
    found = {}
    for event in events:
        name = str(event.get("name"))
        if event.get("cat") == "user_annotation" and name.startswith(STEP_PREFIX):
            found[name] = _span(event, origin_us)
    return tuple(sorted(found.values()))


def _device_name(top: Mapping[str, Any]) -> str | None:
    devices = top.get("deviceProperties")
    if type(devices) is list and devices and type(devices[0]) is dict:
        name = devices[0].get("name")
        return name if type(name) is str else None
    return None


def _operations(
    events: list[dict[str, Any]],
) -> tuple[dict[int, RecordedOperation], dict[int, CollectiveCall]]:
    """CPU operations by External id, and the NCCL calls that they made."""
    found: dict[int, RecordedOperation] = {}
    collectives: dict[int, CollectiveCall] = {}
    for event in events:
        if event.get("cat") != "cpu_op":
            continue
        args = _arguments(event)
        number = args.get("External id")
        if type(number) is int:
            dims = _list(args.get("Input Dims"))
            found[number] = RecordedOperation(
                _name(event),
                number,
                tuple([_shape(each) for each in dims]),
                tuple([str(each) for each in _list(args.get("Input type"))]),
                tuple([_shape(each) for each in _list(args.get("Input Strides"))]),
                tuple([str(each) for each in _list(args.get("Concrete Inputs"))]),
                {
                    place: tuple([_shape(each) for each in several])
                    for place, several in enumerate(dims)
                    if type(several) is list and several and type(several[0]) is list
                },
            )
            call = _collective(event, args)
            if call is not None:
                collectives[number] = call
    return found, collectives


def _launches(
    events: list[dict[str, Any]], origin_us: float
) -> dict[int, tuple[int, float, int | None]]:
    """By correlation: the External id of the operation (-1: none), when the call began, and on
    which thread."""
    found = {}
    for event in events:
        args = event.get("args")
        if event.get("cat") in LAUNCHES and type(args) is dict:
            correlation, external = args.get("correlation"), args.get("External id")
            if type(correlation) is int:
                began_s = (_number(event, "ts") - origin_us) * 1e-6
                number = external if type(external) is int else -1
                found[correlation] = number, began_s, _optional_integer(event.get("tid"))
    return found


def _kernel(event: dict[str, Any], start_us: float, calls: _Calls) -> TimedKernel:
    args = _arguments(event)
    name, duration_us = _name(event), _number(event, "dur")
    if duration_us < 0:
        raise _UnusableError(event, f"dur is {duration_us}, below 0")
    external, correlation = args.get("External id"), args.get("correlation")
    launch = calls.launches.get(correlation) if type(correlation) is int else None
    if type(external) is not int or external not in calls.operations:
        external = -1 if launch is None else launch[0]
    operation = calls.operations.get(external)
    copied = args.get("bytes")
    kind = "copy" if event["cat"] != "kernel" else None
    return TimedKernel(
        name,
        kind or class_of_kernel(name, operation.name if operation else None),
        _optional_integer(args.get("stream")) or 0,
        start_us * 1e-6,
        duration_us * 1e-6,
        operation,
        None if launch is None else launch[1],
        copied if type(copied) is int else None,
        _collective(event, args) or calls.collectives.get(external),
        None if launch is None else launch[2],
    )


def _collective(event: Mapping[str, Any], args: Mapping[str, Any]) -> CollectiveCall | None:
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
        raise _UnusableError(event, f"dtype {dtype!r} is unknown")
    return CollectiveCall(
        kind,
        elements_in * ELEMENT_BYTES[dtype],
        elements_out * ELEMENT_BYTES[dtype],
        dtype,
        str(args.get("Process Group Description", args.get("Process Group Name", ""))),
        members,
        _ranks(event, args.get("Process Group Ranks")),
    )


def _ranks(event: Mapping[str, Any], value: object) -> tuple[int, ...]:
    """``[0, 1, 2]`` as the profiler writes it, in a text; long lists are cut there (``...``)."""
    if value is None or value == "" or (type(value) is str and "..." in value):
        return ()
    try:
        ranks = json.loads(value) if type(value) is str else value
    except (ValueError, RecursionError):
        ranks = None
    if type(ranks) is not list or not all(type(rank) is int for rank in ranks):
        raise _UnusableError(event, f"Process Group Ranks is {value!r}, not a list of ranks")
    return tuple(ranks)


def _shape(dims: object) -> tuple[int, ...]:
    return tuple([each for each in _list(dims) if type(each) is int])


def _list(value: object) -> list[Any]:
    return value if type(value) is list else []


def _optional_integer(value: object) -> int | None:
    return value if type(value) is int else None


def _arguments(event: Mapping[str, Any]) -> dict[str, Any]:
    args = event.get("args", {})
    if type(args) is not dict:
        raise _UnusableError(event, "args is no object")
    return args


def _name(event: Mapping[str, Any]) -> str:
    name = event.get("name")
    if type(name) is not str:
        raise _UnusableError(event, "has no name")
    return name


def _number(event: Mapping[str, Any], field: str) -> float:
    value: Any = event.get(field)
    if type(value) not in (int, float) or not -_MOST < value < _MOST:
        raise _UnusableError(event, f"{field} is {value!r}, not a number")
    return float(value)
