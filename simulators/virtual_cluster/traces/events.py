"""What a trace of one rank consists of: its events, in the order the host issued them.

An event says what happened, never how long it took on the device. Emulation writes these, files
hold them, and replay prices and plays them; reading them needs no torch. Device time is decided
by streams and events exactly as on a GPU: what is launched on one stream runs in order, and
``EventWait`` and ``WorkWait`` order streams among each other.

Numbers (``stream``, ``storage``, ``event``, ``work``, ``site``) identify things within one rank.
Stream 0 is the default stream; communicators have streams of their own, named by the communicator.
"""

from __future__ import annotations

from dataclasses import dataclass

# Phases of a step; what is not inside any of them is "setup" before the first step, "other" after.
SETUP, FORWARD, BACKWARD, OPTIMIZER, OTHER = "setup", "forward", "backward", "optimizer", "other"
PHASES = (SETUP, FORWARD, BACKWARD, OPTIMIZER, OTHER)


# Nobody writes to an event. Those of which there are millions are not frozen all the same: making
# one then takes a third of the time.


@dataclass(slots=True, unsafe_hash=True)
class TensorSpec:
    """A tensor an operation reads or writes.

    ``dtype`` in torch's name without the prefix (``bfloat16``), ``shape`` in elements, ``storage``
    the number of its device memory (None: host memory), ``strides`` in elements when the tensor is
    not contiguous, else None.
    """

    dtype: str
    shape: tuple[int, ...]
    storage: int | None
    strides: tuple[int, ...] | None = None


# Anything an operation is called with that is no tensor: numbers, flags, names, lists of them.
Scalar = bool | int | float | str | None
Argument = TensorSpec | Scalar | tuple["Argument", ...]


@dataclass(slots=True, unsafe_hash=True)
class Op:
    """A device operation launched on ``stream``: one kernel, or what its name stands for.

    ``name`` is the dispatcher's (``aten.mm.default``) or that of an emulated vendor kernel
    (``emulated.<kernel>``). Views and allocations are no operations. ``site`` is where in the
    user's script or framework it was called from, None when not recorded.
    """

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[TensorSpec, ...]
    stream: int
    site: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator came into being: its members' global ranks, in its own order.

    ``collnet``: NCCL_COLLNET_ENABLE asked for switches that sum then.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    collnet: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective was launched: on ``group``'s own stream, after the work of ``stream`` so far.

    ``kind``: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather,
    scatter, barrier. ``bytes_in``/``bytes_out``: of this rank's buffers. ``sequence`` counts the
    collectives of this group on this rank from 0: equal numbers meet across ranks. ``root`` is a
    global rank where the kind has one. ``splits_in``/``splits_out``: elements to and from each
    member when they differ (all-to-all). ``work`` is waited for by ``WorkWait``. ``inputs`` and
    ``outputs`` are the storages it reads and writes.
    """

    kind: str
    group: str
    sequence: int
    bytes_in: int
    bytes_out: int
    dtype: str
    stream: int
    work: int
    root: int | None = None
    splits_in: tuple[int, ...] | None = None
    splits_out: tuple[int, ...] | None = None
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    site: int | None = None

    @property
    def bytes(self) -> int:
        """As NCCL counts them: the larger of what this rank gives and gets."""
        return max(self.bytes_in, self.bytes_out)


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """A send or receive was launched. ``peer`` is a global rank.

    ``sequence`` counts those of this direction and peer within the group from 0. ``batch`` is the
    number of the grouped call (``batch_isend_irecv``) it belongs to, None alone.
    """

    kind: str
    group: str
    peer: int
    sequence: int
    bytes: int
    dtype: str
    stream: int
    work: int
    batch: int | None = None
    storage: int | None = None
    site: int | None = None


@dataclass(frozen=True, slots=True)
class WorkWait:
    """``stream`` waits for a communication (the host too when ``blocks_host``)."""

    work: int
    stream: int
    blocks_host: bool = False


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event was recorded on a stream; ``timing``: somebody may ask when."""

    event: int
    stream: int
    timing: bool = False


@dataclass(frozen=True, slots=True)
class EventWait:
    """``stream`` waits for the last record of ``event``."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Synchronise:
    """The host waits: for the device (``number`` None), a stream, or an event."""

    scope: str
    number: int | None = None
    site: int | None = None


@dataclass(frozen=True, slots=True)
class ValueRead:
    """The host read a value from the device and so waited for ``stream``.

    ``grade`` says what the value is worth: ``exact``, ``expected`` (a mean was propagated) or
    ``invented`` (a documented default).
    """

    operation: str
    value: Scalar | tuple[Scalar, ...]
    grade: str
    stream: int
    site: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class Alloc:
    """Device memory was allocated for a storage, while ``stream`` was current; bytes as asked.

    What a fused kernel makes has 0 bytes, as long as it takes no memory (``Resize`` says when).
    """

    storage: int
    bytes: int
    stream: int


@dataclass(slots=True, unsafe_hash=True)
class Free:
    """The last reference to a storage went."""

    storage: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A storage was resized in place (FSDP frees and refills gathered parameters so), or one that
    a fused kernel made takes memory after all."""

    storage: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RecordStream:
    """A storage is in use on another stream: its memory is not reused before that has run."""

    storage: int
    stream: int


@dataclass(frozen=True, slots=True)
class EmptyCache:
    """The allocator was asked to give cached segments back."""


@dataclass(slots=True, unsafe_hash=True)
class HostGap:
    """CPU seconds the script itself spent since the last event (not the emulator's, not waits)."""

    cpu_s: float


@dataclass(frozen=True, slots=True)
class HostWork:
    """``bytes`` of the host's memory that its CPU read and wrote since the last event, in
    operations on tensors that lie there without data (an optimizer's)."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What follows belongs to this phase (``PHASES``) of step ``step``, counted from 0."""

    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the rank's parameters on the device are as the first optimizer step begins.

    ``elements`` and ``bytes`` of this rank's part of them (its shards, when they are sharded), a
    shared one counted once; ``storages`` hold them, each once.
    """

    elements: int
    bytes: int
    storages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A named range opens: ``kind`` is fused (a compiled region), aside (what runs
    within one and is no part of it), module, or user (NVTX)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class End:
    """The innermost range of this kind closes."""

    kind: str


@dataclass(frozen=True, slots=True)
class Site:
    """A place in source code that other events name by ``number``."""

    number: int
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Violation:
    """Use that a GPU would punish: a wrong stream, a freed handle, and the like."""

    kind: str
    message: str
    site: int | None = None


Event = (
    Op
    | Group
    | Collective
    | PointToPoint
    | WorkWait
    | EventRecord
    | EventWait
    | Synchronise
    | ValueRead
    | Alloc
    | Free
    | Resize
    | RecordStream
    | EmptyCache
    | HostGap
    | HostWork
    | Phase
    | Parameters
    | Begin
    | End
    | Site
    | Violation
)


@dataclass(frozen=True)
class Header:
    """What a trace is of. ``gpu`` is a name in ``conf/gpu``; ``versions`` maps package to version.

    ``memory_bytes`` is the emulated device's. ``local_world_size`` ranks share a node.
    """

    world_size: int
    rank: int
    local_world_size: int
    gpu: str
    memory_bytes: int
    command: tuple[str, ...]
    versions: dict[str, str]


@dataclass(frozen=True)
class Trace:
    """One rank's header and events."""

    header: Header
    events: tuple[Event, ...]
