"""Orders of the pipeline schedules that split the backward pass.

A backward pass is two: the gradient of its input, which the stage before waits for, and that of
its weights, which nobody does and which fills what would be bubble (Qi et al. 2023, "Zero Bubble
Pipeline Parallelism"). All orders are those that take passes of one micro-batch to be equally
long, whatever they take in fact. Passes of a stage are triples: kind, chunk, micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from .passes import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

Pass = tuple[int, int, int]


def behind_1f1b(
    forward: list[Pass], backward: list[Pass], warmup: int, delay: int
) -> Iterator[Pass]:
    """ZB-H1 and ZB-H2: forward and backward passes as in 1F1B after ``warmup`` forward ones, and
    the gradients of weights ``delay`` passes behind those of inputs."""
    yield from forward[:warmup]
    for index in range(len(backward)):
        yield from forward[warmup + index : warmup + index + 1]
        yield (INPUT_GRADIENT, *backward[index][1:])
        if index >= delay:
            yield (WEIGHT_GRADIENT, *backward[index - delay][1:])
    for _, chunk, micro in backward[max(0, len(backward) - delay) :]:
        yield WEIGHT_GRADIENT, chunk, micro


class _Counted:
    """Passes of two chunks, each kind in the order of micro-batches."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self.done = {(kind, chunk): 0 for kind in (FORWARD, BACKWARD, WEIGHT_GRADIENT)
                     for chunk in (0, 1)}  # fmt: skip
        # Chunks whose gradients of weights are owed, in order.
        self.owed: list[int] = []

    def forward(self, chunk: int) -> None:
        self._add(FORWARD, FORWARD, chunk)

    def backward(self, chunk: int) -> None:
        """Both halves at once."""
        self._add(BACKWARD, BACKWARD, chunk)
        self.done[WEIGHT_GRADIENT, chunk] += 1

    def input_gradient(self, chunk: int) -> None:
        self._add(INPUT_GRADIENT, BACKWARD, chunk)
        self.owed.append(chunk)

    def weight_gradient(self, chunk: int | None = None) -> None:
        """The one that is owed longest, or the longest of a chunk."""
        owed = self.owed[0] if chunk is None else chunk
        self.owed.remove(owed)
        self._add(WEIGHT_GRADIENT, WEIGHT_GRADIENT, owed)

    def _add(self, kind: int, counter: int, chunk: int) -> None:
        self.passes.append((kind, chunk, self.done[counter, chunk]))
        self.done[counter, chunk] += 1


def zero_bubble_v(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """ZB-V (Qi et al. 2023, section 6): the second chunk of a stage lies as far from the model's
    end as its first from the beginning."""
    # Fewer micro-batches leave gaps in the order of those that fill the pipeline.
    count = max(micro_batches, 2 * stages - 1)
    made = _Counted()
    for _ in range(2 * (stages - stage) - 1):
        made.forward(0)
    for _ in range(stage):
        made.forward(1)
        made.forward(0)
    for _ in range(stages - stage):
        made.forward(1)
        made.input_gradient(1)
        made.weight_gradient()
    while made.done[FORWARD, 1] < count:
        if made.done[FORWARD, 0] < count:
            made.forward(0)
        made.input_gradient(0)
        made.weight_gradient()
        made.forward(1)
        made.input_gradient(1)
        made.weight_gradient()
    for _ in range(stage):
        made.input_gradient(0)
        made.input_gradient(1)
    for _ in range(stages - stage):
        made.input_gradient(0)
        made.weight_gradient(0)
    for chunk in (1, 0):
        while chunk in made.owed:
            made.weight_gradient(chunk)
    return [each for each in made.passes if each[2] < micro_batches]


# By how many passes each stage comes after the one before it, down the V and up; how many later
# backward passes begin where the number of stages is a multiple of what; and how many the way back
# waits at its turn: so no two passes of blocks that repeat fall on each other (their authors'
# code, zbv_greedy.py).
_BLOCKS = {"v-half": (2, 1, 3, 2, 1), "v-min": (1, 1, 2, 3, 0)}
# Passes of a micro-batch on a stage: two chunks, three kinds.
_PERIOD = 6


def controlled_v(schedule: str, stages: int, micro_batches: int) -> list[list[Pass]]:
    """V-Half and V-Min ("Pipeline Parallelism with Controllable Memory", Qi et al. 2024) of every
    stage: building blocks that repeat every six passes, their passes in order of when they would
    begin, within the activations published: (p + 2) // 2 and (p + 4) // 3 micro-batches."""
    down, up, later, multiple, pause = _BLOCKS[schedule]
    most = (stages + 2) // 2 if schedule == "v-half" else (stages + 4) // 3
    last = stages - 1
    turn = down * last + 1
    back = turn + up * last + 1 + later * (stages % multiple == 0)
    end = back + down * last + 1 + pause
    waiting: list[list[Pass]] = []
    for stage in range(stages):
        begins = (
            (down * stage, FORWARD, 0),
            (turn + up * (last - stage), FORWARD, 1),
            (back + down * stage, INPUT_GRADIENT, 1),
            (end + up * (last - stage), INPUT_GRADIENT, 0),
        )
        timed = [
            (at + _PERIOD * micro, (kind, chunk, micro))
            for micro in range(micro_batches)
            for at, kind, chunk in begins
        ]
        waiting.append([each for _, each in sorted(timed)])
    return _with_weight_gradients(waiting, 2 * most)


def _with_weight_gradients(waiting: list[list[Pass]], most: int) -> list[list[Pass]]:
    """Orders with gradients of weights where a stage would wait, where two are owed already, or
    where ``most`` chunks are kept: passes of equal length are played to see."""
    stages = range(len(waiting))
    orders: list[list[Pass]] = [[] for _ in stages]
    owed: list[list[Pass]] = [[] for _ in stages]
    at, kept, clock = [0 for _ in stages], [0 for _ in stages], 0
    ended: dict[tuple[int, Pass], int] = {}
    while any(at[stage] < len(waiting[stage]) or owed[stage] for stage in stages):
        for stage in stages:
            run = waiting[stage][at[stage]] if at[stage] < len(waiting[stage]) else None
            if run is not None:
                before = _before(stage, len(waiting), run)
                ready = before is None or ended.get(before, clock + 1) <= clock
                full = run[0] == FORWARD and kept[stage] == most
                if not ready or len(owed[stage]) > 2 or (full and owed[stage]):
                    run = None
            if run is not None:
                at[stage] += 1
                kept[stage] += run[0] == FORWARD
                if run[0] == INPUT_GRADIENT:
                    owed[stage].append((WEIGHT_GRADIENT, *run[1:]))
            elif owed[stage]:
                run = owed[stage].pop(0)
                kept[stage] -= 1
            if run is not None:
                orders[stage].append(run)
                ended[stage, run] = clock + 1
        clock += 1
    return orders


def _before(stage: int, stages: int, each: Pass) -> tuple[int, Pass] | None:
    """What a pass waits for on its own stage or a neighbour."""
    kind, chunk, micro = each
    down = (chunk == 0) == (kind == FORWARD)
    if kind == FORWARD and chunk == 0 and stage == 0:
        return None
    if down and stage > 0:
        return stage - 1, each
    if not down and stage < stages - 1:
        return stage + 1, each
    # Where the V turns, and at the model's end.
    if down:
        return stage, (FORWARD, chunk, micro)
    return stage, (kind, 1 - chunk, micro)


def both_ways(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """DualPipe's eight phases (DeepSeek-AI 2024, section 3.2.1, and its published code), on the
    first half of ``stages`` of a bidirectional pipeline or, cut in half, on a V: a stage's first
    chunk runs micro-batches that come from the first stage, its second those that come back."""
    made = _Counted()
    ahead = stages - stage - 1
    for _ in range(2 * ahead):
        made.forward(0)
    for _ in range(stage + 1):
        made.forward(0)
        made.forward(1)
    for _ in range(ahead):
        made.input_gradient(1)
        made.weight_gradient()
        made.forward(1)
    for _ in range(micro_batches - 2 * stages + stage + 1):
        made.forward(0)
        made.backward(1)
        made.forward(1)
        made.backward(0)
    for _ in range(ahead):
        made.backward(1)
        made.forward(1)
        made.backward(0)
    # The second half of what is left splits its backward passes.
    for index in range(2 * (stage + 1)):
        chunk = 1 - index % 2
        if index > stage:
            made.input_gradient(chunk)
        else:
            made.backward(chunk)
    for _ in range(ahead):
        made.weight_gradient()
        made.input_gradient(0)
    while made.owed:
        made.weight_gradient()
    return made.passes
