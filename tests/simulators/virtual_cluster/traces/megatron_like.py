"""Hand-made traces of a job like Megatron's: tensor, data and pipeline parallel, 1F1B.

Small and regular, but with what makes real ranks of one kind differ: a broadcast from
tensor-parallel rank 0, a gradient norm that counts one more tensor there, optimizer shards cut out
of other parameters, storages and sites with other numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    SETUP,
    Alloc,
    Argument,
    Collective,
    Event,
    Free,
    Group,
    Header,
    HostGap,
    Op,
    Phase,
    PointToPoint,
    Site,
    TensorSpec,
    Trace,
    WorkWait,
)

HIDDEN, TOKENS = 1024, 512
ACTIVATION_BYTES = TOKENS * HIDDEN * 2
LAYER_PARAMETERS = 12 * HIDDEN * HIDDEN


@dataclass(frozen=True)
class Layout:
    """Ranks are numbered with tensor parallel innermost, then data, then pipeline."""

    tp: int = 2
    dp: int = 3
    pp: int = 4
    micro_batches: int = 6
    layers: int = 2

    @property
    def world_size(self) -> int:
        return self.tp * self.dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank(self, tp: int, dp: int, pp: int) -> int:
        return tp + self.tp * (dp + self.dp * pp)


def groups(layout: Layout, rank: int) -> list[Group]:
    tp, dp, pp = layout.place(rank)

    def group(description: str, ranks: Iterable[int]) -> Group:
        members = tuple(ranks)
        return Group(f"{description}-{members[0]}", description, members)

    pipeline = [layout.rank(tp, dp, stage) for stage in range(layout.pp)]
    found = [
        group("default_pg", range(layout.world_size)),
        group("TENSOR_MODEL_PARALLEL_GROUP", (layout.rank(t, dp, pp) for t in range(layout.tp))),
        group("DATA_PARALLEL_GROUP", (layout.rank(tp, d, pp) for d in range(layout.dp))),
        group("PIPELINE_MODEL_PARALLEL_GROUP", pipeline),
        group(
            "MODEL_PARALLEL_GROUP",
            (layout.rank(t, dp, stage) for stage in range(layout.pp) for t in range(layout.tp)),
        ),
    ]
    if pp in (0, layout.pp - 1) and layout.pp > 1:
        found.append(group("EMBEDDING_GROUP", (pipeline[0], pipeline[-1])))
    return found


class RankWriter:
    """Collects a rank's events, numbering what traces number."""

    def __init__(self, layout: Layout, rank: int) -> None:
        self.events: list[Event] = []
        self.groups = {group.description: group for group in groups(layout, rank)}
        self.rank = rank
        # Ranks number their things differently.
        self.storage = 100 * rank
        self.work = 10 * rank
        self._batch = 0
        self._sequence: Counter[object] = Counter()

    def allocate(self, size: int) -> int:
        self.storage += 1
        self.events.append(Alloc(self.storage, size, 0))
        return self.storage

    def op(self, name: str, inputs: Sequence[Argument], shape: tuple[int, ...]) -> TensorSpec:
        output = TensorSpec("bfloat16", shape, self.allocate(2 * shape[0] * shape[-1]))
        self.events += [Op(name, tuple(inputs), (output,), 0, site=self.rank + 1), HostGap(1e-5)]
        return output

    def collective(
        self, kind: str, description: str, bytes_in: int, bytes_out: int, root: int | None = None
    ) -> None:
        group = self.groups[description]
        if len(group.ranks) == 1:
            return
        self.work += 1
        sequence = self._sequence[group.name]
        self._sequence[group.name] += 1
        self.events += [
            Collective(
                kind, group.name, sequence, bytes_in, bytes_out, "bfloat16", 0, self.work,
                root=root, site=self.rank + 1,
            ),
            WorkWait(self.work, 0),
        ]  # fmt: skip

    def exchange(self, *transfers: tuple[str, int]) -> None:
        """One batch of (send or recv, stages further)."""
        group = self.groups["PIPELINE_MODEL_PARALLEL_GROUP"]
        position = group.ranks.index(self.rank)
        self._batch += 1
        works = []
        for kind, distance in transfers:
            if not 0 <= position + distance < len(group.ranks):
                continue
            peer = group.ranks[position + distance]
            self.work += 1
            works.append(self.work)
            sequence = self._sequence[kind, peer]
            self._sequence[kind, peer] += 1
            self.events.append(
                PointToPoint(
                    kind, group.name, peer, sequence, ACTIVATION_BYTES, "bfloat16", 0,
                    self.work, self._batch, site=self.rank + 1,
                )
            )  # fmt: skip
        self.events += [WorkWait(work, 0) for work in works]


def megatron_trace(layout: Layout, rank: int, steps: int = 1) -> Trace:
    """One rank's trace: set-up, then steps of 1F1B and a sharded optimizer."""
    tp, dp, stage = layout.place(rank)
    writer = RankWriter(layout, rank)
    writer.events += [Site(rank + 1, "train.py", 10 + rank, "step"), Phase(SETUP, 0)]
    writer.events += writer.groups.values()
    weights = [
        TensorSpec("bfloat16", (HIDDEN, 12 * HIDDEN // layout.tp), writer.allocate(2))
        for _ in range(layout.layers)
    ]
    writer.collective("barrier", "default_pg", 0, 0)
    for step in range(steps):
        writer.events.append(Phase(FORWARD, step))
        warm_up = min(layout.pp - stage - 1, layout.micro_batches)
        for _ in range(warm_up):
            writer.exchange(("recv", -1))
            _forward(writer, layout, weights, step)
            writer.exchange(("send", 1))
        if layout.micro_batches > warm_up:
            writer.exchange(("recv", -1))
        for n in range(layout.micro_batches - warm_up):
            last = n == layout.micro_batches - warm_up - 1
            _forward(writer, layout, weights, step)
            writer.exchange(("send", 1), ("recv", 1))
            _backward(writer, layout, weights, step)
            writer.exchange(*[("send", -1)] + [("recv", -1)] * (not last))
        for _ in range(warm_up):
            writer.exchange(("recv", 1))
            _backward(writer, layout, weights, step)
            writer.exchange(("send", -1))
        _optimizer(writer, layout, step, tp, dp)
    header = Header(layout.world_size, rank, 8, "h800", 80 << 30, ("train.py",), {"torch": "2"})
    return Trace(header, tuple(writer.events))


def _forward(writer: RankWriter, layout: Layout, weights: list[TensorSpec], step: int) -> None:
    writer.events.append(Phase(FORWARD, step))
    root = writer.groups["TENSOR_MODEL_PARALLEL_GROUP"].ranks[0]
    writer.collective("broadcast", "TENSOR_MODEL_PARALLEL_GROUP", 4096, 4096, root)
    for weight in weights:
        shard = ACTIVATION_BYTES // layout.tp
        writer.collective("all_gather", "TENSOR_MODEL_PARALLEL_GROUP", shard, ACTIVATION_BYTES)
        activation = TensorSpec("bfloat16", (TOKENS, HIDDEN), writer.storage)
        writer.op("aten.mm.default", [activation, weight], (TOKENS, weight.shape[1]))
        writer.collective("reduce_scatter", "TENSOR_MODEL_PARALLEL_GROUP", ACTIVATION_BYTES, shard)


def _backward(writer: RankWriter, layout: Layout, weights: list[TensorSpec], step: int) -> None:
    writer.events.append(Phase(BACKWARD, step))
    for weight in weights:
        shard = ACTIVATION_BYTES // layout.tp
        gradient = TensorSpec("bfloat16", (TOKENS, weight.shape[1]), writer.storage)
        writer.op("aten.mm.default", [gradient, _transposed(weight)], (TOKENS, HIDDEN))
        activation = TensorSpec("bfloat16", (TOKENS, HIDDEN), writer.storage)
        writer.op("aten.mm.default", [_transposed(activation), gradient], weight.shape)
        writer.collective("reduce_scatter", "TENSOR_MODEL_PARALLEL_GROUP", ACTIVATION_BYTES, shard)
        writer.events.append(Free(writer.storage))


def _transposed(tensor: TensorSpec) -> TensorSpec:
    rows, columns = tensor.shape
    return TensorSpec(tensor.dtype, (columns, rows), tensor.storage, (1, columns))


def _optimizer(writer: RankWriter, layout: Layout, step: int, tp: int, dp: int) -> None:
    writer.events.append(Phase(OPTIMIZER, step))
    size = layout.layers * LAYER_PARAMETERS // layout.tp
    writer.collective("reduce_scatter", "DATA_PARALLEL_GROUP", 4 * size, 4 * size // layout.dp)
    if "EMBEDDING_GROUP" in writer.groups:
        writer.collective("all_reduce", "EMBEDDING_GROUP", 8192, 8192)
    # The shard of each data-parallel rank begins elsewhere within the parameters.
    shard, first = size // layout.dp, 1000 + 10 * dp
    pieces = [TensorSpec("float32", (n,), writer.allocate(4 * n)) for n in (first, shard - first)]
    normed = [*pieces, TensorSpec("float32", (HIDDEN,), writer.allocate(4))] if tp == 0 else pieces
    writer.op("emulated.multi_tensor_l2norm.default", [tuple(normed), False], (1,))
    writer.collective("all_reduce", "MODEL_PARALLEL_GROUP", 4, 4)
    lists = [tuple(pieces)] * 4
    writer.op("aten._fused_adamw_.default", [*lists, (), ()], (1,))
    writer.collective("all_gather", "DATA_PARALLEL_GROUP", 2 * size // layout.dp, 2 * size)
