"""What a price says: the parts of a step, operations and blocks with their seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import CollectivePrice
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.workload import ir

COMPUTE = "compute"
OVERLAP_SLOWDOWN = "overlap_slowdown"
STRAGGLERS = "stragglers"
HOST = "host"
BUBBLE = "bubble"
OPTIMIZER = "optimizer"
# The part of the step that a communicator's time is shown under.
COMMUNICATION = {
    "tp": "tp_communication",
    "tp_cp": "tp_communication",
    "stage": "dp_communication",
    "etp": "tp_communication",
    "cp": "cp_communication",
    "ep": "ep_communication",
    "etp_ep": "ep_communication",
    "dp": "dp_communication",
    "expert_dp": "dp_communication",
    **{
        f"{name}_{group}": "dp_communication"
        for name in ("dp", "expert_dp")
        for group in ("shard", "copies")
    },
    "model": "dp_communication",
    "embedding": "dp_communication",
    "pp": "pp_communication",
}
PARTS = (
    COMPUTE,
    "tp_communication",
    "cp_communication",
    "ep_communication",
    "pp_communication",
    "dp_communication",
    OVERLAP_SLOWDOWN,
    STRAGGLERS,
    BUBBLE,
    OPTIMIZER,
    HOST,
)
PART_INDEX = {name: index for index, name in enumerate(PARTS)}
# Of communicators that traces name, whose time is shown by group: no place in ``PARTS``.
NO_PART = len(PARTS)
EVIDENCE = tuple(Evidence)
# Most are of the first.
KERNELS = (ir.Streaming, ir.Gemm, ir.GroupedGemm, ir.Attention, ir.Convolution)
COMMUNICATIONS = (ir.Collective, ir.SendRecv)
DeviceOp = ir.Kernel | ir.Collective | ir.SendRecv | ir.HostUpdate


@dataclass(frozen=True, eq=False, repr=False)
class PricedBlock:
    """One block's time on one GPU.

    ``part_s`` has one entry per name in ``PARTS`` and sums to ``seconds``, the device time of
    the block run alone, with waits for the host that it contains. ``host_s`` is what the host
    needs to launch it, ``start_s`` how much longer the device waits for that where the host
    begins with nothing left to run. ``kernel_s``, shape (2, kernel classes), are the seconds of
    its kernels by class, and how many of those are limited by memory bandwidth.
    ``channels`` and ``wire_bytes_per_s`` describe its communication (time-weighted means, see
    ``CollectivePrice``), ``nic_bytes`` what of it this rank sends over its node's NICs.
    ``evidence_s`` are the seconds priced as measured, fitted, estimated.
    """

    seconds: float
    part_s: np.ndarray
    host_s: float
    start_s: float
    kernel_s: np.ndarray
    channels: float
    wire_bytes_per_s: float
    nic_bytes: float
    evidence_s: np.ndarray
    estimated: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class PricedOp:
    """One operation's own time: ``seconds`` alone on the device, on the slowest rank.

    ``launches`` the host makes for it; ``overlaps``: how many operations behind it run beside it.
    ``part`` is the place in ``PARTS`` of its time alone, ``grade`` that of its evidence in
    ``EVIDENCE``, ``kernel_class`` a kernel's in ``KERNEL_CLASSES``.
    """

    op: DeviceOp
    seconds: float
    evidence: Evidence
    memory_bound: float = 0.0
    communication: CollectivePrice | None = None
    launches: int = field(init=False, compare=False)
    overlaps: int = field(init=False, compare=False)
    part: int = field(init=False, compare=False)
    grade: int = field(init=False, compare=False)
    kernel_class: int = field(init=False, compare=False)

    def __init__(
        self,
        op: DeviceOp,
        seconds: float,
        evidence: Evidence,
        memory_bound: float = 0.0,
        communication: CollectivePrice | None = None,
    ) -> None:
        # Read for every block that has it, and made for every kernel of a new recipe.
        part, overlaps, kernel_class = _COMPUTE, 0, -1
        if isinstance(op, COMMUNICATIONS):
            shown = COMMUNICATION.get(op.communicator)
            part, overlaps = NO_PART if shown is None else PART_INDEX[shown], op.overlaps
        elif isinstance(op, ir.HostUpdate):
            part = PART_INDEX[OPTIMIZER]
        else:
            kernel_class = _class_of(op)
        self.__dict__.update(
            op=op,
            seconds=seconds,
            evidence=evidence,
            memory_bound=memory_bound,
            communication=communication,
            launches=launches_of(op),
            overlaps=overlaps,
            part=part,
            grade=EVIDENCE.index(evidence),
            kernel_class=kernel_class,
        )


# Of a launch, what a product of each expert takes: an eighth from C++ (``ir.group_launches``) and
# a sixth for Python that goes through experts' weights: lists of Transformer Engine's grouped
# layers, autograd, Megatron-Core's hook. Traced on virtual GPUs (2.9 and 0.16.1), an expert
# more takes a core 0.22 to 0.25 ms in both passes, of six products, and a dense layer of 36
# launches 8.3 to 9.4 ms: 0.14 to 0.18 of a launch for each.
_OF_EXPERT = Fraction(1, ir.GROUPS_A_LAUNCH) + Fraction(1, 6)


def launches_of(op: DeviceOp) -> int:
    """Launches the host makes for one operation."""
    if isinstance(op, ir.GroupedGemm) and not op.one_kernel:
        return 1 + _OF_EXPERT.numerator * op.groups // _OF_EXPERT.denominator
    if isinstance(op, ir.Gemm) and op.within:
        return 0
    if isinstance(op, ir.Streaming):
        # Transformer Engine takes a tensor's largest value and casts it to NVFP4 in one call of
        # C++, and orders the scales in the product's: half as many calls as kernels.
        return op.launches // 2 if op.kind == "cast_fp4" else op.launches
    return 1 + (isinstance(op, ir.SendRecv) and op.paired)


def calls_of(priced: PricedOp) -> int:
    """Calls of PyTorch's communication that the host makes: none where a product itself sends, or
    kernels store tokens where they are used."""
    op = priced.op
    if not isinstance(op, COMMUNICATIONS):
        return 0
    sends = isinstance(op, ir.Collective) and (op.in_product or op.stored_bytes)
    return 0 if sends else priced.launches


_COMPUTE = PART_INDEX[COMPUTE]
# The class whose slowdown beside communication a kernel shares.
_CLASSES = {
    kind: KERNEL_CLASSES.index(name)
    for kind, name in (
        (ir.Gemm, "gemm"),
        (ir.Convolution, "gemm"),
        (ir.GroupedGemm, "grouped_gemm"),
        (ir.Attention, "attention"),
    )
}
_NORM, _STREAMING = KERNEL_CLASSES.index("norm"), KERNEL_CLASSES.index("streaming")


def _class_of(op: ir.Kernel) -> int:
    if isinstance(op, ir.Streaming):
        return _NORM if op.kind.startswith("norm") else _STREAMING
    return _CLASSES[type(op)]
